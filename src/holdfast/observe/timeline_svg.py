"""A timeline as an SVG: a picture for a slide or a paper, readable without a word beside it.

Colours are of the Okabe-Ito kind, told apart by people with any colour vision, and every bar
carries its micro-batch. The HTML page recolours paper and ink for dark screens by class names.
"""

from collections.abc import Iterator
from html import escape

import msgspec

from holdfast.observe.quantities import format_bytes, format_time, nice_ticks
from holdfast.observe.timeline_view import KINDS, Bar, TimelineRow, TimelineView

WIDTH = 1280
ROW = 34
BAR = 28
REPLICA_GAP = 12
MARGIN = 24
HEAD = 112
FOOT = 60
SIDE = 132
"""Right of the chart: busy share and memory."""

FILLS = {
    "F": "#3b82c4",
    "B": "#0a6b50",
    "I": "#0a6b50",
    "W": "#eda61e",
    "STEP": "#6a737d",
    "REDUCE": "#9467bd",
    "SEND": "#c2557a",
    "COPY": "#8c9aa8",
}
"""Of different brightness, too: the picture survives a black-and-white printer."""
DARK_TEXT = ("W",)
_SHADES = (0.0, 0.42, 0.62, 0.74)
"""How much white is mixed into the colour of a worker's first, second ... stage."""

STYLE = """
text { font-family: "Helvetica Neue", Helvetica, Arial, "Liberation Sans", sans-serif; }
.paper { fill: #ffffff; } .ink { fill: #1b1f24; } .dim { fill: #59636e; } .warn { fill: #b8420a; }
.grid { stroke: #d8dee4; stroke-width: 1; } .axis { fill: none; stroke: #59636e; stroke-width: 1; }
.idle { fill: url(#hatch); } .pale { fill: #f3f4f6; } .line { stroke: #d5d9de; stroke-width: 1.2; }
.lost { fill: none; stroke: #b8420a; stroke-width: 1.2; stroke-dasharray: 5 4; }
.bar rect { stroke: #ffffff; stroke-width: 1; } .bar text { text-anchor: middle; }
.guest rect { stroke: #ffd33d; stroke-width: 2.5; }
.path { fill: none; stroke: #d1242f; stroke-width: 2.5; }
.jump { stroke-width: 1.2; }
""".strip()


class Frame(msgspec.Struct, frozen=True):
    """Where things are."""

    left: float
    width: float
    """Of the chart."""
    end: float
    tops: tuple[float, ...]
    """Upper edge of every row."""
    bottom: float
    digits: int
    """Of the longest micro-batch number: all numbers of bars of one width get one size."""

    @property
    def right(self) -> float:
        return self.left + self.width

    def x(self, time: float) -> float:
        return self.left + (time / self.end if self.end else 0.0) * self.width


def timeline_svg(view: TimelineView) -> str:
    """The whole picture as one text."""
    frame = frame_of(view)
    height = frame.bottom + FOOT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {_n(height)}" '
        f'width="{WIDTH}" height="{_n(height)}" role="img" aria-label="{escape(view.title)}">',
        f"<style>{STYLE}</style>",
        _hatch(),
        f'<rect class="paper" width="{WIDTH}" height="{_n(height)}"/>',
        *_head(view),
        *_side_titles(frame),
        *_grid(view, frame),
    ]
    for row, top in zip(view.rows, frame.tops, strict=True):
        parts += _row(row, top, view, frame)
    parts += [*_critical(view, frame), *_foot(view, frame), "</svg>"]
    return "\n".join(parts) + "\n"


def frame_of(view: TimelineView) -> Frame:
    widest = max((_label_width(row) for row in view.rows), default=0.0)
    left = MARGIN + min(260.0, max(70.0, widest)) + 14
    tops: list[float] = []
    top = float(HEAD)
    for number, row in enumerate(view.rows):
        if number and view.rows[number - 1].replica != row.replica:
            top += REPLICA_GAP
        tops.append(top)
        top += ROW
    last = max((bar.micro_batch for row in view.rows for bar in row.bars), default=0)
    width = WIDTH - MARGIN - SIDE - left
    return Frame(left, width, view.end, tuple(tops), top, len(str(last)))


def _n(number: float) -> str:
    """Two decimals at most: pictures stay small."""
    return f"{number:.2f}".rstrip("0").rstrip(".")


def text_width(text: str, size: float) -> float:
    """About how wide a text is: digits of the usual sans-serif fonts are 0.56 of their size."""
    return 0.56 * size * len(text)


def fit(text: str, size: float, width: float) -> str:
    """The text, cut with an ellipsis where it would not fit."""
    if text_width(text, size) <= width + 0.5:
        return text
    return text[: max(1, int(width / (0.56 * size)) - 1)] + "…"


def typeset(title: str) -> str:
    """Signs a terminal may not have."""
    return title.replace(" x ", " × ").replace("1f1b", "1F1B")


def _text(x: float, y: float, text: str, size: float, style: str = "ink", extra: str = "") -> str:
    place = f'x="{_n(x)}" y="{_n(y)}" font-size="{_n(size)}"'
    return f'<text class="{style}" {place}{extra}>{escape(text)}</text>'


def _hatch() -> str:
    return (
        '<defs><pattern id="hatch" width="7" height="7" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect class="pale" width="7" height="7"/>'
        '<line class="line" x1="0" y1="0" x2="0" y2="7"/></pattern></defs>'
    )


# Around the chart.


def _head(view: TimelineView) -> Iterator[str]:
    yield _text(
        MARGIN,
        34,
        fit(typeset(view.title), 20, WIDTH - 2 * MARGIN),
        20,
        "ink",
        ' font-weight="700"',
    )
    facts = dict(view.facts)
    idle = f"idle {facts['bubble share']} of all worker time"
    line = "   ·   ".join([f"iteration time {facts['iteration time']}", idle, facts["batch"]])
    yield _text(MARGIN, 58, fit(line, 14, WIDTH - 2 * MARGIN), 14, "ink")
    yield from _legend(view)


def _legend(view: TimelineView) -> Iterator[str]:
    x, y = float(MARGIN), 74.0
    entries = [(kind, KINDS[kind]) for kind in view.kinds]
    for kind, name in [*entries, ("", "idle")]:
        if kind:
            yield f'<rect x="{_n(x)}" y="{y}" width="22" height="14" rx="2" fill="{FILLS[kind]}"/>'
        else:
            yield f'<rect class="idle" x="{_n(x)}" y="{y}" width="22" height="14" rx="2"/>'
        yield _text(x + 29, y + 11.5, name, 12.5)
        x += 29 + text_width(name, 12.5) + 24
    for entry, width in _legend_extras(view, y):
        yield f'<g transform="translate({_n(x)} 0)">{entry}</g>'
        x += width


def _legend_extras(view: TimelineView, y: float) -> Iterator[tuple[str, float]]:
    """(picture at x = 0, width) of the signs that do not occur in every timeline."""
    words = "number: micro-batch"
    yield _text(0, y + 11.5, words, 12.5, "dim"), text_width(words, 12.5) + 24
    if any(bar.turn for row in view.rows for bar in row.bars):
        words = "lighter: a worker's later stages"
        yield _text(0, y + 11.5, words, 12.5, "dim"), text_width(words, 12.5) + 24
    if view.has_guests:
        size = f'x="1" y="{y + 1}" width="20" height="12" rx="2" fill="{FILLS["F"]}"'
        box = f'<g class="guest"><rect {size}/></g>'
        words = "micro-batch of another replica"
        yield box + _text(29, y + 11.5, words, 12.5), text_width(words, 12.5) + 53
    if view.path:
        line = f'<path class="path" d="M0 {y + 7}H22"/>'
        yield line + _text(29, y + 11.5, "critical path", 12.5), 130


def _side_titles(frame: Frame) -> Iterator[str]:
    end = ' text-anchor="end"'
    yield _text(frame.right + 56, HEAD - 6, "busy", 11, "dim", end)
    yield _text(WIDTH - MARGIN, HEAD - 6, "memory", 11, "dim", end)


def _grid(view: TimelineView, frame: Frame) -> Iterator[str]:
    """Light lines at round times, labelled below; the end of the step is always labelled."""
    y = frame.bottom + 4
    last = format_time(view.end, view.time_unit)
    clear = frame.right - text_width(last, 12) - 10
    for tick in nice_ticks(view.end, 14):
        x = frame.x(tick)
        yield f'<path class="grid" d="M{_n(x)} {HEAD - 2}V{_n(y)}"/>'
        if x + 12 < clear:
            yield _text(x, y + 16, f"{tick:g}", 12, "dim", ' text-anchor="middle"')
    yield f'<path class="axis" d="M{_n(frame.left)} {_n(y)}H{_n(frame.right)}V{HEAD - 2}"/>'
    yield _text(frame.right + 4, y + 16, last, 12, "ink", ' text-anchor="end" font-weight="700"')


def _foot(view: TimelineView, frame: Frame) -> Iterator[str]:
    y = frame.bottom + 44
    words = ["r0.s1: replica 0, stage 1"]
    words += [f"costs: {dict(view.facts)['costs']}"] if "costs" in dict(view.facts) else []
    if view.num_hidden:
        words.append(f"{view.num_hidden} more workers are not drawn")
    room = WIDTH - 2 * MARGIN - 80
    yield _text(MARGIN, y, fit("   ·   ".join(words), 11.5, room), 11.5, "dim")
    yield _text(frame.right + 4, y, "time →", 12, "dim", ' text-anchor="end"')


# Rows.


def _label(row: TimelineRow) -> tuple[str, str, str]:
    """Role, note, and the line below them."""
    times = f" × {row.num_lanes}" if row.num_lanes > 1 else ""
    return row.label + times, row.note, row.place


def _label_width(row: TimelineRow) -> float:
    """What the label needs; a long list of workers is cut rather than the chart."""
    role, note, place = _label(row)
    upper = text_width(role, 13.5) + (text_width(note, 11) + 8 if note else 0)
    return max(upper, min(text_width(place, 11), 120.0))


def _row(row: TimelineRow, top: float, view: TimelineView, frame: Frame) -> Iterator[str]:
    yield from _row_label(row, top, frame)
    box = f'x="{_n(frame.left)}" y="{_n(top)}" width="{_n(frame.width)}" height="{BAR}"'
    if row.lost:
        yield f'<rect class="lost" {box}/>'
        middle = ' text-anchor="middle"'
        yield _text(frame.left + frame.width / 2, top + 18.5, "lost", 13, "warn", middle)
        return
    yield f'<rect class="idle" {box}/>'
    yield from _row_numbers(row, top, view, frame)
    for bar in sorted(row.bars, key=lambda bar: bar.guest):
        yield _bar(bar, top, frame, view.time_unit)
    for bar in row.reductions:
        x, width = frame.x(bar.start), frame.x(bar.end) - frame.x(bar.start)
        yield (
            f'<rect x="{_n(x)}" y="{_n(top + BAR)}" width="{_n(max(width, 0.5))}" height="4" '
            f'fill="{FILLS["REDUCE"]}"><title>{escape(hover(bar, view.time_unit))}</title></rect>'
        )


def _row_label(row: TimelineRow, top: float, frame: Frame) -> Iterator[str]:
    role, note, place = _label(row)
    width = frame.left - 14 - MARGIN
    yield _text(
        MARGIN,
        top + 12,
        fit(role, 13.5, width),
        13.5,
        "warn" if note else "ink",
        ' font-weight="700"',
    )
    if note:
        x = MARGIN + text_width(role, 13.5) + 8
        yield _text(x, top + 12, fit(note, 11, frame.left - 14 - x), 11, "warn")
    yield _text(MARGIN, top + 26, fit(place, 11, width), 11, "dim")


def _row_numbers(row: TimelineRow, top: float, view: TimelineView, frame: Frame) -> Iterator[str]:
    end = ' text-anchor="end"'
    busy = f"{100 * row.busy / view.end:.0f} %" if view.end else "-"
    yield _text(frame.right + 56, top + 18.5, busy, 12.5, "ink", end)
    yield _text(WIDTH - MARGIN, top + 18.5, format_bytes(row.memory.total), 12.5, "dim", end)


def _bar(bar: Bar, top: float, frame: Frame, time_unit: str) -> str:
    x, width = frame.x(bar.start), frame.x(bar.end) - frame.x(bar.start)
    inset = 1 if bar.guest else 0
    style = "bar guest" if bar.guest else "bar"
    place = f'x="{_n(x + inset)}" y="{_n(top + inset)}"'
    size = f'width="{_n(max(width - 2 * inset, 0.3))}" height="{BAR - 2 * inset}"'
    return (
        f'<g class="{style}" data-m="{bar.micro_batch}">'
        f"<title>{escape(hover(bar, time_unit))}</title>"
        f'<rect {place} {size} fill="{shade(bar)}"/>'
        f"{_bar_number(bar, frame.digits, x, width, top)}</g>"
    )


def _bar_number(bar: Bar, digits: int, x: float, width: float, top: float) -> str:
    text = str(bar.micro_batch) if bar.micro_batch >= 0 else ""
    sizes = (13, 11, 9, 7.5)
    size = next((size for size in sizes if text_width("0" * digits, size) + 2 <= width), 0)
    if not text or not size:
        return ""
    ink = "#1b1f24" if bar.turn or bar.kind in DARK_TEXT else "#ffffff"
    weight = ' font-weight="700"' if bar.guest else ""
    y = top + BAR / 2 + 0.36 * size
    place = f'x="{_n(x + width / 2)}" y="{_n(y)}" font-size="{_n(size)}"'
    return f'<text {place} fill="{ink}"{weight}>{text}</text>'


def shade(bar: Bar) -> str:
    """The colour of the kind, lighter for a worker's later stages."""
    base, white = FILLS[bar.kind], _SHADES[min(bar.turn, len(_SHADES) - 1)]
    parts = [int(base[i : i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(part + (255 - part) * white):02x}" for part in parts)


def hover(bar: Bar, time_unit: str) -> str:
    """`forward of micro-batch 3 on r0.s1: 4 to 5`."""
    what = KINDS[bar.kind] + (f" of micro-batch {bar.micro_batch}" if bar.micro_batch >= 0 else "")
    where = f" on {bar.stage}" if bar.stage else ""
    times = f"{format_time(bar.start)} to {format_time(bar.end, time_unit)}"
    return f"{what}{where}: {times}" + (" (of another replica)" if bar.guest else "")


def _critical(view: TimelineView, frame: Frame) -> Iterator[str]:
    """A line below the bars that decide the length of the step, thin between them."""
    along, between = "", ""
    here = ""
    for row, bar in view.path:
        y = _n(frame.tops[row] + BAR - 2.5)
        start = f"{_n(frame.x(bar.start))} {y}"
        between += f"M{here}L{start}" if here else ""
        here = f"{_n(frame.x(bar.end))} {y}"
        along += f"M{start}L{here}"
    if along:
        yield f'<path class="path" d="{along}"/><path class="path jump" d="{between}"/>'
