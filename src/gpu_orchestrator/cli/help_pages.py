"""How a help page looks: titles, and two columns below each. No boxes, and no defaults that say nothing."""

import textwrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cyclopts.help import HelpEntry, HelpPanel
    from rich.console import Console, ConsoleOptions

WIDEST = 100
INDENT = "  "
NARROWEST_TEXT = 30
LIBRARY_TITLES = ("Commands", "Parameters")
SILENT_DEFAULTS = {"False", "True", '""', "None", "()", "[]", "0"}


class Pages:
    """A formatter for cyclopts."""

    def __call__(self, console: "Console", options: "ConsoleOptions", panel: "HelpPanel") -> None:
        if not panel.entries:
            return
        rows = [(_label(entry), _description(entry)) for entry in panel.entries]
        is_options = panel.title == "Parameters" or all(label.startswith("-") for label, _ in rows)
        title = panel.title if panel.title not in LIBRARY_TITLES or not is_options else "Options"
        _print(console, [f"{title}:", *two_columns(rows, min(console.width, WIDEST)), ""])

    def render_usage(self, console: "Console", options: "ConsoleOptions", usage: Any) -> None:
        _print(console, [f"Usage: {_plain(usage).strip()}", ""])

    def render_description(self, console: "Console", options: "ConsoleOptions", description: Any) -> None:
        text = _plain(description).strip()
        paragraphs = [
            textwrap.fill(" ".join(each.split()), min(console.width, WIDEST)) for each in text.split("\n\n")
        ]
        if text:
            _print(console, ["\n\n".join(paragraphs), ""])


def two_columns(rows: list[tuple[str, str]], width: int) -> list[str]:
    """Return the rows as lines; a long text goes on in its column."""
    left = max(len(label) for label, _ in rows)
    left = min(left, max(width - len(INDENT) * 2 - NARROWEST_TEXT, 12))
    lines = []
    for label, text in rows:
        first, *more = _wrapped(text, max(width - left - len(INDENT) * 2, NARROWEST_TEXT))
        if len(label) > left:
            lines.append(INDENT + label)
            label = ""
        lines.append(f"{INDENT}{label.ljust(left)}{INDENT}{first}".rstrip())
        lines += [" " * (left + 2 * len(INDENT)) + line for line in more]
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False) or [""]


def _label(entry: "HelpEntry") -> str:
    names = entry.display_labels_with_metavar
    if entry.positional_label:
        return entry.positional_label
    shorts = [name for name in names if not name.startswith("--") and name.startswith("-")]
    return ", ".join([*shorts, *(name for name in names if name not in shorts)])


def _description(entry: "HelpEntry") -> str:
    parts = [" ".join(_plain(entry.description).split())]
    if entry.choices and not all(each in parts[0] for each in entry.choices):
        parts.append(f"[one of {', '.join(entry.choices)}]")
    if entry.env_var:
        parts.append(f"[or {', '.join(entry.env_var)}]")
    if entry.default is not None and entry.default not in SILENT_DEFAULTS:
        parts.append(f"[default: {entry.default.strip('(),').replace(chr(39), '').removesuffix('.0')}]")
    if entry.required and not entry.positional_label:
        parts.append("[required]")
    return " ".join(each for each in parts if each)


def _plain(renderable: Any) -> str:
    """Return the text of what cyclopts hands over for `plaintext`."""
    if isinstance(renderable, str):
        return renderable
    inner = getattr(renderable, "primary_renderable", renderable)
    return str(getattr(inner, "plain", ""))


def _print(console: "Console", lines: list[str]) -> None:
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True, emoji=False)
