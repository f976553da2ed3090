"""Render the pages that a browser sees: plain HTML with one style sheet, no script, nothing from elsewhere.

`page` turns the Markdown that `reference` writes into HTML; it knows what is used there and nothing more.
"""

import re
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from html import escape

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
code { font-family: ui-monospace, monospace; font-size: 0.9em; background: #8882; padding: 0 0.2em }
pre { background: #8882; padding: 0.6em; overflow-x: auto } pre code { background: none; padding: 0 }
table { border-collapse: collapse; margin: 0.5rem 0 1rem; display: block; overflow-x: auto }
th, td { text-align: left; vertical-align: top; padding: 0.2rem 1rem 0.2rem 0; border-bottom: 1px solid }
h2 { margin-top: 2.5rem } h3 { margin-top: 2rem }
:root { color-scheme: light dark }
"""
HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; "
    f"frame-ancestors 'none'; style-src 'sha256-{b64encode(sha256(STYLE.encode()).digest()).decode()}'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
"""A page may load nothing and run nothing; its own style sheet is allowed by its hash."""

_CODE = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")
_EMPHASIS = re.compile(r"\*(\w[^*]*)\*")
_HEADING = re.compile(r"(#{1,3}) (.+)")
_CELL = re.compile(r"(?<!\\)\|")
_NOT_IN_IDS = re.compile(r"[^\w -]")


def page(title: str, markdown: str) -> bytes:
    body = "\n".join(_blocks(markdown))
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{STYLE}</style></head>\n<body>\n{body}\n</body>\n</html>\n"
    ).encode()


def _blocks(markdown: str) -> Iterator[str]:
    """Yield each paragraph, heading, list, table and code block as HTML."""
    for block in re.split(r"\n\s*\n", markdown.strip("\n")):
        lines = block.splitlines()
        if heading := _HEADING.fullmatch(lines[0]):
            yield _heading(len(heading[1]), heading[2])
            lines = lines[1:]
        if not lines:
            continue
        if lines[0].startswith("|"):
            yield _table(lines)
        elif lines[0].startswith("- "):
            yield "<ul>" + "".join(f"<li>{_inline(each.removeprefix('- '))}</li>" for each in lines) + "</ul>"
        elif lines[0].startswith("    "):
            text = "\n".join(each.removeprefix("    ") for each in lines)
            yield f"<pre><code>{escape(text)}</code></pre>"
        else:
            yield f"<p>{_inline(' '.join(lines))}</p>"


def _heading(level: int, text: str) -> str:
    anchor = _NOT_IN_IDS.sub("", text.lower()).replace(" ", "-")
    return f'<h{level} id="{escape(anchor)}">{_inline(text)}</h{level}>'


def _table(lines: list[str]) -> str:
    head, _, *rows = [_CELL.split(line.strip())[1:-1] for line in lines]
    body = "".join(_row("td", each) for each in rows)
    return f"<table><thead>{_row('th', head)}</thead><tbody>{body}</tbody></table>"


def _row(tag: str, cells: list[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{_inline(each.strip())}</{tag}>" for each in cells) + "</tr>"


def _inline(text: str) -> str:
    """Return a line with its code and links. What is inside code stays as it is."""
    parts = _CODE.split(text.replace("\\|", "|"))
    return "".join(
        f"<code>{escape(part)}</code>" if at % 2 else _EMPHASIS.sub(r"<em>\1</em>", _linked(part))
        for at, part in enumerate(parts)
    )


def _linked(text: str) -> str:
    return _LINK.sub(_link, escape(text))


def _link(found: re.Match[str]) -> str:
    """Return a link. The guides are not served, so links to them become their names."""
    text, target = found[1], found[2]
    return text if ".md" in target else f'<a href="{target}">{text}</a>'
