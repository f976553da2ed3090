"""Draw what a terminal showed, moment by moment, as one SVG picture that plays in a loop.

A row of text that stays is drawn once, for the time from its first to its last moment. Readers who have asked
their system for less motion see the last moment.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from scripts.recordings.terminal import Row, Style

WIDE, HIGH, EDGE, BAR = 8.4, 18, 14, 30
FONT = "ui-monospace,'DejaVu Sans Mono','Liberation Mono',Menlo,Consolas,monospace"
BACK, TEXT = "#10171d", "#d7dee4"
COLOURS = (
    *("#10171d", "#f2777a", "#7bd88f", "#f5c86a", "#6cb6ff", "#c9a0ff", "#5fd3d3", "#d7dee4"),
    *("#71808c", "#ff9a9c", "#a3eab1", "#ffdd93", "#9ccfff", "#dcc3ff", "#93e6e6", "#ffffff"),
)


@dataclass(frozen=True, slots=True)
class Moment:
    """What was shown from this second on."""

    at_s: float
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Piece:
    """One row of text on one line of the screen, from one second to another."""

    line: int
    row: Row
    from_s: float
    to_s: float


def svg(moments: Sequence[Moment], *, title: str, width: int, height: int, rest_s: float = 4.0) -> str:
    """Return the picture. After the last moment it stands still for `rest_s`, then begins again."""
    end_s = moments[-1].at_s + rest_s
    pieces = _pieces(moments, end_s)
    times = sorted({(each.from_s, each.to_s) for each in pieces})
    names = {each: f"t{number}" for number, each in enumerate(times)}
    drawn = [_drawn(each, names[each.from_s, each.to_s]) for each in pieces]
    wide, high = width * WIDE + 2 * EDGE, height * HIGH + BAR + EDGE
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {high:.0f}" width="{wide:.0f}" '
        f'role="img" aria-label="{escape(title)}" font-family="{FONT}" font-size="14" fill="{TEXT}">'
    )
    name = f'<text x="{wide / 2:.0f}" y="21" text-anchor="middle" fill="#8696a3">{escape(title)}</text>'
    return "\n".join(
        [
            head,
            f"<style>{_style(names, end_s)}</style>",
            f'<rect width="{wide:.0f}" height="{high:.0f}" rx="10" fill="{BACK}"/>',
            *(f'<circle cx="{18 + 18 * n}" cy="16" r="5" fill="#3a4650"/>' for n in range(3)),
            name,
            *drawn,
            "</svg>\n",
        ]
    )


def _pieces(moments: Sequence[Moment], end_s: float) -> list[Piece]:
    pieces, since = [], dict[int, tuple[Row, float]]()
    for moment in [*moments, Moment(end_s, ())]:
        rows = dict(enumerate(moment.rows))
        for line in sorted(since.keys() | rows.keys()):
            row, start_s = since.get(line, ((), moment.at_s))
            if rows.get(line, ()) != row:
                if row:
                    pieces.append(Piece(line, row, start_s, moment.at_s))
                since[line] = (rows.get(line, ()), moment.at_s)
    return pieces


def _style(names: dict[tuple[float, float], str], end_s: float) -> str:
    """Return a class for each span of time, which is visible during it and again when the picture loops."""
    rules = ["text{white-space:pre}.b{font-weight:700}.d{opacity:.6}.i{font-style:italic}"]
    for (from_s, to_s), name in names.items():
        if from_s == 0 and to_s == end_s:
            continue
        start, end = 100 * from_s / end_s, 100 * to_s / end_s
        frames = "" if from_s == 0 else f"0%{{visibility:hidden}}{start:.3f}%{{visibility:visible}}"
        frames = frames or "0%{visibility:visible}"
        frames += "" if to_s == end_s else f"{end:.3f}%{{visibility:hidden}}"
        last = "visible" if to_s == end_s else "hidden"
        rules.append(
            f"@keyframes {name}{{{frames}}}"
            f".{name}{{visibility:{last};animation:{name} {end_s:.2f}s step-end infinite}}"
        )
    return "".join(rules) + "@media(prefers-reduced-motion:reduce){*{animation:none!important}}"


def _drawn(piece: Piece, name: str) -> str:
    parts, column = [], 0
    y = BAR + HIGH * piece.line + 14
    for style, text in piece.row:
        x = EDGE + WIDE * column
        if style.back is not None:
            parts.append(
                f'<rect x="{x:.1f}" y="{y - 14}" width="{WIDE * len(text):.1f}" height="{HIGH}" '
                f'fill="{COLOURS[style.back]}"/>'
            )
        if text.strip():
            start = len(text) - len(text.lstrip())
            kept = text.strip()
            parts.append(
                f'<text x="{x + WIDE * start:.1f}" y="{y}" textLength="{WIDE * len(kept):.1f}"'
                f"{_look(style)}>{escape(kept, quote=False)}</text>"
            )
        column += len(text)
    return f'<g class="{name}">{"".join(parts)}</g>'


def _look(style: Style) -> str:
    classes = " ".join(
        name for name, wanted in zip("bdi", (style.bold, style.dim, style.italic), strict=True) if wanted
    )
    look = f' class="{classes}"' if classes else ""
    return look if style.colour is None else f'{look} fill="{COLOURS[style.colour]}"'
