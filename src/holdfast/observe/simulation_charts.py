"""Charts of a simulation as inline SVG: no script, no font, nothing from elsewhere.

Text and lines take their colours from the page's style, so that they follow light and dark
screens; data colours work on both.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from math import floor, log10

from holdfast.observe.quantities import nice_ticks

WIDTH = 1080
LEFT, RIGHT = 190, 30

COLOURS = (
    "#8c8c8c", "#b07aa1", "#f28e2b", "#59a14f", "#4e79a7",
    "#e1a100", "#76b7b2", "#9c755f", "#d37295", "#1f6fb4", "#d62728",
)  # fmt: skip
"""Of policies, in their order; the last one stands out."""

CAUSE_COLOURS = {
    "productive": "#5aa469",
    "starting": "#b8c0cc",
    "detection": "#d1495b",
    "scheduling": "#e07a5f",
    "planning": "#264653",
    "groups": "#edae49",
    "moving state": "#c9a227",
    "loading": "#8d6a9f",
    "first step": "#b39bc8",
    "joining": "#5b8e7d",
    "lost work": "#7f4f24",
    "saving": "#3d7ea6",
    "missing devices": "#7d8597",
    "slow devices": "#a3a9b5",
    "slow steps": "#c58b9f",
    "redundancy": "#00798c",
    "faster plan": "#4f9d69",
    "evaluation": "#9aa57c",
    "waiting for devices": "#15171c",
    "not running": "#3a3f4a",
    "ending": "#8a909c",
}

Spans = Sequence[tuple[float, float, float]]
"""(start, end, level 0 .. 1)."""


class Canvas:
    """Collects shapes."""

    def __init__(self, height: float, title: str) -> None:
        self.height = height
        self.shapes: list[str] = []
        self.title = title

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        self.shapes.append(
            f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
        )

    def text(
        self, x: float, y: float, words: str, anchor: str = "start", kind: str = "ink"
    ) -> None:
        self.shapes.append(
            f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
            f"{escape(words)}</text>"
        )

    def rect(
        self, x: float, y: float, width: float, height: float, colour: str, tip: str = ""
    ) -> None:
        inner = f"<title>{escape(tip)}</title>" if tip else ""
        self.shapes.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(0.0, width):.2f}" height="{height:.1f}" '
            f'fill="{colour}">{inner}</rect>'
        )

    def path(self, points: str, colour: str, width: float = 0.0, fill: bool = False) -> None:
        look = f'fill="{colour}" fill-opacity="0.55"' if fill else f'fill="none" stroke="{colour}"'
        thick = f' stroke-width="{width:g}" stroke-linejoin="round"' if width else ""
        self.shapes.append(f'<path d="{points}" {look}{thick}/>')

    def svg(self) -> str:
        return (
            f'<svg viewBox="0 0 {WIDTH} {self.height:.0f}" role="img" '
            f'aria-label="{escape(self.title)}">' + "".join(self.shapes) + "</svg>"
        )


def throughput_chart(
    rows: Sequence[tuple[str, str, Spans]], failures: Sequence[float], start: float, end: float
) -> str:
    """One row per policy: (name, note, throughput), failures as ticks above; x in hours."""
    row_height, top = 46, 26
    canvas = Canvas(top + row_height * len(rows) + 34, "Throughput over time")
    scale = (WIDTH - LEFT - RIGHT) / (end - start)
    bottom = top + row_height * len(rows)
    for tick in _ticks(start, end):
        x = LEFT + (tick - start) * scale
        canvas.line(x, top, x, bottom, "grid")
        canvas.text(x, bottom + 18, f"{tick:g} h", "middle", "dim")
    for failure in failures:
        if start <= failure <= end:
            x = LEFT + (failure - start) * scale
            canvas.line(x, top - 12, x, top - 3, "fail")
    canvas.text(LEFT - 12, top - 4, "failures", "end", "dim")
    for number, (name, note, spans) in enumerate(rows):
        low = top + row_height * (number + 1) - 4
        colour = COLOURS[number % len(COLOURS)]
        canvas.text(LEFT - 12, low - 20, name, "end")
        canvas.text(LEFT - 12, low - 5, note, "end", "dim")
        canvas.line(LEFT, low, WIDTH - RIGHT, low, "axis")
        canvas.path(_steps(spans, start, end, scale, low, row_height - 10), colour, fill=True)
    return canvas.svg()


def _ticks(start: float, end: float) -> list[float]:
    return [start + tick for tick in nice_ticks(end - start, 12)]


def _steps(spans: Spans, start: float, end: float, scale: float, low: float, height: float) -> str:
    """The outline of a step function, closed along its foot."""
    parts = [f"M{LEFT:.1f} {low:.1f}"]
    last = float(LEFT)
    for begin, stop, level in spans:
        if stop <= start or begin >= end:
            continue
        y = low - level * height
        x1 = LEFT + (max(begin, start) - start) * scale
        last = LEFT + (min(stop, end) - start) * scale
        parts.append(f"L{x1:.2f} {y:.1f}L{last:.2f} {y:.1f}")
    parts.append(f"L{last:.1f} {low:.1f}Z")
    return "".join(parts)


def budget_chart(rows: Sequence[tuple[str, float, Mapping[str, float]]]) -> str:
    """Stacked bars: (name, goodput, shares by cause)."""
    row_height, top = 30, 6
    causes = [c for c in CAUSE_COLOURS if any(shares.get(c, 0) > 0 for _, _, shares in rows)]
    legend_rows = -(-(len(causes) + 1) // 6)
    foot = top + row_height * len(rows)
    canvas = Canvas(foot + 30 + 22 * legend_rows, "What is lost to what")
    scale = WIDTH - LEFT - RIGHT
    for number, (name, goodput, shares) in enumerate(rows):
        y = top + row_height * number
        canvas.text(LEFT - 12, y + 18, name, "end")
        x = float(LEFT)
        for cause, share in [("productive", goodput), *((c, shares.get(c, 0.0)) for c in causes)]:
            tip = f"{name}: {cause} {100 * share:.2f} %"
            canvas.rect(x, y + 4, share * scale, row_height - 8, CAUSE_COLOURS[cause], tip)
            x += share * scale
        canvas.text(LEFT + 8, y + 19, f"{100 * goodput:.1f} %", kind="onbar")
    for tick in range(0, 101, 20):
        canvas.text(LEFT + tick / 100 * scale, foot + 16, f"{tick} %", "middle", "dim")
    for number, cause in enumerate(["productive", *causes]):
        x, y = LEFT + number % 6 * 142, foot + 28 + number // 6 * 22
        canvas.rect(x, y, 12, 12, CAUSE_COLOURS[cause])
        canvas.text(x + 18, y + 11, cause, kind="dim")
    return canvas.svg()


def line_chart(
    series: Sequence[tuple[str, Sequence[tuple[float, float]]]], labels: Mapping[float, str]
) -> str:
    """Goodput up to 1 over a logarithmic x; `labels` names the x values. Names stand at the ends.
    The axis begins a little below the lowest line, and says so by its first number.
    """
    height, top, right = 380, 14, 190
    canvas = Canvas(height + 40, "Goodput")
    low = height - 10
    xs = sorted({x for _, points in series for x, _ in points})
    spread = (log10(xs[-1]) - log10(xs[0])) or 1.0

    def across(x: float) -> float:
        return 60 + (log10(x) - log10(xs[0])) / spread * (WIDTH - 60 - right)

    ticks = percent_ticks(min(y for _, points in series for _, y in points))
    scale = (low - top) / (ticks[-1] - ticks[0])
    for tick in ticks:
        y = low - (tick - ticks[0]) * scale
        canvas.line(60, y, WIDTH - right, y, "grid")
        canvas.text(50, y + 4, f"{tick} %", "end", "dim")
    for x in xs:
        canvas.line(across(x), low, across(x), low + 5, "axis")
        canvas.text(across(x), low + 20, labels.get(x, f"{x:g}"), "middle", "dim")
    ends: list[tuple[float, int, str]] = []
    for number, (name, points) in enumerate(series):
        spots = [(across(x), low - (100 * y - ticks[0]) * scale) for x, y in points]
        thick = 3.5 if number == len(series) - 1 else 2.0
        route = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in spots)
        canvas.path(route, COLOURS[number % len(COLOURS)], thick)
        ends.append((spots[-1][1], number, f"{name} {100 * points[-1][1]:.1f} %"))
    for y, number, words in spread_out(ends, 17):
        canvas.rect(WIDTH - right + 8, y - 5, 10, 10, COLOURS[number % len(COLOURS)])
        canvas.text(WIDTH - right + 24, y + 4, words)
    return canvas.svg()


def percent_ticks(lowest: float) -> list[int]:
    """From a round number at or below the lowest share to 100, about five of them."""
    for step in (1, 2, 5, 10, 20):
        first = floor(100 * lowest / step + 1e-9) * step
        if 100 - first <= 5 * step:
            break
    return list(range(min(first, 100 - step), 101, step))


def spread_out(
    labels: Iterable[tuple[float, int, str]], gap: float
) -> list[tuple[float, int, str]]:
    """Labels moved apart, in their order, so that none covers another."""
    placed: list[tuple[float, int, str]] = []
    for y, number, words in sorted(labels):
        if placed:
            y = max(y, placed[-1][0] + gap)
        placed.append((y, number, words))
    return placed
