"""A timeline in the terminal: one line per row, fitted to the width there is.

Bars carry their letter and micro-batch, so that the picture is readable without colours too;
neighbouring bars of one kind alternate between two shades. Where a computation takes less than a
character, the characters show kinds of work in the proportion of their time.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec
from rich.console import Console, Group, RenderableType
from rich.style import Style
from rich.table import Table
from rich.text import Text

from holdfast.observe.quantities import format_bytes, format_share, format_time, nice_ticks
from holdfast.observe.timeline_view import KINDS, Bar, TimelineRow, TimelineView

_BACKGROUNDS = {
    "F": ("#2a64a3", "#4a86c5"),
    "B": ("#0a7052", "#209070"),
    "I": ("#0a7052", "#209070"),
    "W": ("#e0a010", "#f0bd4e"),
    "STEP": ("#6b6b6b", "#6b6b6b"),
    "REDUCE": ("#9a7fb8", "#9a7fb8"),
}
"""Two shades per kind, for even and odd micro-batches."""
_GUEST_BACKGROUNDS = {"F": "#b9d6f2", "B": "#b4e6d3", "I": "#b4e6d3", "W": "#ffe3a3"}
"""Pale: a micro-batch that is only passing through."""
_LIGHT_TEXT = ("F", "B", "I", "STEP")
_FILLS = {"F": "-", "B": "=", "I": "=", "W": "~", "STEP": "#"}
"""What fills a bar where there are no colours."""
_LETTERS = {"STEP": "S", "REDUCE": "R"}
MIN_CHART = 24


class TerminalStyle(msgspec.Struct, frozen=True):
    """How this terminal wants it."""

    colour: bool
    idle: str
    margin: int
    """Characters for the labels."""
    width: int
    """Characters for the chart itself."""


def look_of(console: Console, *views: TimelineView) -> TerminalStyle:
    """One look for all of them, so that they can be compared by eye."""
    margin = 2 + max((len(_label(row)) for view in views for row in view.rows), default=0)
    unicode = console.encoding.lower().startswith("utf")
    return TerminalStyle(
        colour=console.color_system is not None and not console.no_color,
        idle="·" if unicode else ".",
        margin=margin,
        width=max(MIN_CHART, console.width - margin),
    )


def draw(view: TimelineView, console: Console) -> None:
    console.print(Text(view.title, style="bold"))
    console.print()
    look = look_of(console, view)
    console.print(chart(view, look))
    console.print()
    console.print(legend(view, look))
    console.print()
    console.print(numbers(view))
    console.print()
    console.print(row_table(view))


def chart(view: TimelineView, look: TerminalStyle) -> RenderableType:
    """Rows and axis."""
    columns = num_columns(view, look.width)
    lines: list[Text] = []
    for number, row in enumerate(view.rows):
        if number and view.rows[number - 1].replica != row.replica:
            lines.append(Text(""))
        line = Text(_label(row).ljust(look.margin), style="bold red" if row.note else "")
        lines.append(line.append_text(row_text(row, view.end, columns, look)))
    lines.append(Text(" " * look.margin + _axis(view, columns), style="dim"))
    if view.num_hidden:
        lines.append(Text(f"({view.num_hidden} more workers are not drawn)", style="dim"))
    return Group(*lines)


def _label(row: TimelineRow) -> str:
    label = row.label if len(row.label) <= 24 else row.label[:21] + "..."
    words = [label, f"x {row.num_lanes}" if row.num_lanes > 1 else "", row.note]
    return " ".join(word for word in words if word)


def num_columns(view: TimelineView, width: int) -> int:
    """Characters for the whole step, chosen so that bars of equal length look equal.

    That works where all times are multiples of one, which then gets a whole number of characters;
    not where it would leave much of the width unused.
    """
    times = {time for row in view.rows for bar in row.bars for time in (bar.start, bar.end)}
    unit = _common_unit({*times, view.end}, view.end / width)
    if not unit:
        return width
    total = round(view.end / unit)
    columns = total * (width // total)
    return columns if columns > 0.7 * width else width


def _common_unit(times: set[float], least: float) -> float:
    """The largest time of which all are multiples; 0 if it would be below `least`."""
    unit = 0.0
    for time in sorted(times):
        a, b = time, unit
        while b > least / 100:
            a, b = b, a % b
            if a - b < least / 100:  # a remainder that is one only by rounding
                b = 0.0
        unit = a
        if 0 < unit < least * 0.999:
            return 0.0
    return unit


def row_text(row: TimelineRow, end: float, columns: int, look: TerminalStyle) -> Text:
    """The bars of one row over `columns` characters."""
    if row.lost:
        return Text("lost".center(columns, "x"), style="dim")
    if not end:
        return Text("")
    text = Text()
    for start, stop, bar in _pieces(row.bars, columns / end, columns):
        if bar is None:
            text.append(look.idle * (stop - start), style="bright_black")
        else:
            text.append(bar_text(bar, stop - start, look), style=bar_style(bar, look))
    return text


def _pieces(
    bars: Sequence[Bar], scale: float, columns: int
) -> Iterator[tuple[int, int, Bar | None]]:
    """(first column, last column + 1, bar) from left to right, None for idle time, none empty."""
    spread = _sampled if is_dense(bars, scale) else _exact
    owners = spread(bars, scale, columns)
    edges = [i for i in range(columns) if i == 0 or owners[i] is not owners[i - 1]]
    for start, stop in pairwise([*edges, columns]):
        yield start, stop, owners[start]


def is_dense(bars: Sequence[Bar], scale: float) -> bool:
    """Does a bar get no character of its own?"""
    return any(
        round(bar.end * scale) <= round(bar.start * scale) for bar in bars if bar.end > bar.start
    )


def _exact(bars: Sequence[Bar], scale: float, columns: int) -> list[Bar | None]:
    owners: list[Bar | None] = [None] * columns
    for bar in bars:
        for column in range(round(bar.start * scale), min(columns, round(bar.end * scale))):
            owners[column] = bar
    return owners


def _sampled(bars: Sequence[Bar], scale: float, columns: int) -> list[Bar | None]:
    """Kinds in the proportion of their time, where single bars are too short to be seen.

    What a character cannot show of its slice of time is owed to the next ones.
    """
    use: list[dict[str, float]] = [{} for _ in range(columns)]
    for bar in bars:
        for column in range(int(bar.start * scale), min(columns, int(bar.end * scale) + 1)):
            part = min(bar.end * scale, column + 1) - max(bar.start * scale, column)
            use[column][bar.kind] = use[column].get(bar.kind, 0.0) + max(0.0, part)
    owed: dict[str, float] = {"": 0.0}
    any_of = {bar.kind: Bar(0, 1, bar.kind) for bar in bars}
    owners: list[Bar | None] = []
    for kinds in use:
        for kind, part in {**kinds, "": 1.0 - sum(kinds.values())}.items():
            owed[kind] = owed.get(kind, 0.0) + part
        # Only what happens here may be shown here, or debts would spill into idle time.
        here = [kind for kind, part in kinds.items() if part > 0.01]
        most = max([*here, *([""] if sum(kinds.values()) < 0.99 else [])], key=lambda k: owed[k])
        owed[most] -= 1.0
        owners.append(any_of.get(most))
    return owners


def bar_text(bar: Bar, width: int, look: TerminalStyle) -> str:
    """`F12` and what fills the rest; less where it does not fit. A guest's letter is small."""
    letter = _LETTERS.get(bar.kind, bar.kind)
    letter = letter.lower() if bar.guest else letter
    number = str(bar.micro_batch) if bar.micro_batch >= 0 else ""
    # Colours already tell the kind, so there the number is worth more than the letter.
    short = [number] if look.colour and number else []
    text = next((text for text in [letter + number, *short] if len(text) <= width), letter)
    return text.ljust(width, " " if look.colour else _fill(bar))


def _fill(bar: Bar) -> str:
    return "#" if bar.critical else _FILLS.get(bar.kind, " ")


def bar_style(bar: Bar, look: TerminalStyle) -> Style:
    if not look.colour:
        return Style.null()
    background = _BACKGROUNDS[bar.kind][bar.micro_batch % 2]
    ink = "#ffffff" if bar.kind in _LIGHT_TEXT else "#000000"
    if bar.guest:
        ink, background = "#000000", _GUEST_BACKGROUNDS.get(bar.kind, background)
    return Style(color=ink, bgcolor=background, bold=bar.critical, underline=bar.critical)


def _axis(view: TimelineView, columns: int) -> str:
    """Ticks, and at the right edge the end of the step, which is worth more than a tick near it."""
    last = format_time(view.end, view.time_unit)
    room = columns - len(last)
    line = ""
    for tick in nice_ticks(view.end, max(1, columns // 10)):
        at = round(tick * columns / view.end) if view.end else 0
        text = f"{tick:g}"
        if at + len(text) < room:
            line = line.ljust(at) + text
    return line.ljust(room) + last


def legend(view: TimelineView, look: TerminalStyle) -> Text:
    text = Text()
    for kind in view.kinds:
        if kind == "REDUCE":
            continue  # runs beside the computations; the terminal has one line per row
        text.append(bar_text(Bar(0, 1, kind), 3, look), style=bar_style(Bar(0, 1, kind), look))
        text.append(f" {KINDS[kind]}   ")
    text.append(look.idle * 3, style="bright_black")
    dense = any(is_dense(row.bars, look.width / view.end) for row in view.rows if view.end)
    text.append(" idle   " + ("shares of time" if dense else "digits: micro-batch"))
    if view.has_guests:
        words = "pale" if look.colour else "small letters"
        text.append(f"   {words}: of another replica")
    if any(bar.critical for row in view.rows for bar in row.bars):
        text.append("   underlined" if look.colour else "   ###")
        text.append(": critical path")
    return text


def numbers(view: TimelineView) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in view.facts:
        table.add_row(Text(name, style="dim"), value)
    return table


def row_table(view: TimelineView) -> Table:
    """What each row's workers do and need."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("role", overflow="fold")
    table.add_column("workers", overflow="fold")
    for title in ("busy", "idle", "in flight", "memory", "= state", "+ activations"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in view.rows:
        table.add_row(*_cells(row, view))
    return table


def _place(row: TimelineRow) -> str:
    """The workers; of many only the first blocks, and how many there are."""
    place = row.place
    if len(place) > 30:
        place = ",".join(place.split(",")[:3]) + ", ..."
    return f"{place} ({len(row.workers)})" if len(row.workers) > 1 else place


def _cells(row: TimelineRow, view: TimelineView) -> list[str]:
    name = f"{row.label} {row.note}".strip()
    if row.lost:
        return [name, row.place, *["-"] * 6]
    memory = row.memory
    return [
        name,
        _place(row),
        format_share(row.busy / view.end) if view.end else "-",
        format_time(view.end - row.busy),
        str(row.in_flight),
        format_bytes(memory.total),
        format_bytes(memory.total - memory.activations),
        format_bytes(memory.activations),
    ]
