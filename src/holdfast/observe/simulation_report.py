"""The result of a simulation as one HTML file that needs nothing else."""

from collections.abc import Iterator, Sequence
from html import escape

import msgspec

from holdfast.observe.goodput import BUCKET_OF, BUCKETS
from holdfast.observe.simulation_charts import budget_chart, line_chart, throughput_chart

ZOOM_HOURS = 2.0


class PolicyView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    goodput: float
    lost: dict[str, float]
    """Share of the time by cause."""
    spans: tuple[tuple[float, float, float], ...]
    """(start, end, throughput) in hours."""
    num_stops: int
    median_stall: str
    rule: str
    source: str
    limits: str
    constants: str


class ChartLine(msgspec.Struct, frozen=True):
    name: str
    points: tuple[tuple[float, float], ...]


class CellView(msgspec.Struct, frozen=True):
    situation: str
    policy: str
    strategy: str
    rate: float
    stall_s: float


class DecisionView(msgspec.Struct, frozen=True):
    time: str
    event: str
    subject: str
    strategy: str
    rate: float
    stall_s: float
    reason: str


class SimulationReport(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    facts: tuple[tuple[str, str], ...]
    hours: float
    failures: tuple[float, ...]
    """When, in hours."""
    policies: tuple[PolicyView, ...]
    """The one that is told about in detail last."""
    by_scale: tuple[ChartLine, ...]
    by_gap: tuple[ChartLine, ...]
    cells: tuple[CellView, ...]
    decisions: tuple[DecisionView, ...]
    """Of the last policy."""


_STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1b1f24; --dim: #59636e;
  --line: #d8dee4; --pale: #f4f6f8; --fail: #d62728; }
@media (prefers-color-scheme: dark) { :root { --paper: #12161c; --ink: #e6edf3; --dim: #9aa5b1;
  --line: #30363d; --pale: #1a2028; --fail: #ff6b6b; } }
body { background: var(--paper); color: var(--ink); margin: 24px auto; max-width: 1120px;
  padding: 0 20px;
  font: 15px/1.5 "Helvetica Neue", Helvetica, Arial, "Liberation Sans", sans-serif; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 18px; margin: 36px 0 4px; }
p { margin: 4px 0 12px; color: var(--dim); max-width: 860px; }
svg { width: 100%; height: auto; display: block; margin: 8px 0; }
svg text { font-size: 12.5px; fill: var(--ink); } svg text.dim { fill: var(--dim); }
svg text.onbar { fill: #ffffff; font-weight: 600; }
.grid { stroke: var(--line); } .axis { stroke: var(--dim); stroke-width: 0.8; }
.fail { stroke: var(--fail); stroke-width: 1.4; }
.facts { display: flex; flex-wrap: wrap; gap: 8px 36px; margin: 14px 0; }
.facts dt { color: var(--dim); font-size: 13px; } .facts dd { margin: 0; font-weight: 600; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13.5px; }
th { color: var(--dim); font-weight: 500; text-align: left; border-bottom: 1px solid var(--line); }
th, td { padding: 5px 12px 5px 0; vertical-align: top; }
td.number, th.number { text-align: right; white-space: nowrap; }
.grid-table td { padding: 5px 8px; border: 1px solid var(--paper); color: #10151a; min-width: 74px;
  font-size: 12px; line-height: 1.3; }
.grid-table td:first-child { color: var(--ink); font-size: 13px; }
.grid-table b { font-size: 13px; }
footer { color: var(--dim); font-size: 13px; margin: 32px 0; }
""".strip()


def simulation_html(report: SimulationReport) -> str:
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(report.title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(report.title)}</h1>",
        *_facts(report.facts),
        *_summary(report),
        *_throughput(report),
        *_sweeps(report),
        *_grid(report.cells),
        *_cards(report.policies),
        *_decisions(report),
        "<footer>Made by holdfast simulate. Goodput is kept training steps at the pace of the "
        "undisturbed job, as a share of the time; buckets are named as in Google's goodput "
        "library.</footer></body></html>",
        "",
    ]
    return "\n".join(parts)


def _facts(facts: Sequence[tuple[str, str]]) -> Iterator[str]:
    yield '<dl class="facts">'
    for name, value in facts:
        yield f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
    yield "</dl>"


def _summary(report: SimulationReport) -> Iterator[str]:
    yield "<h2>What is lost to what</h2>"
    yield "<p>The same failures for every policy. Point at a part for its share.</p>"
    yield budget_chart([(view.name, view.goodput, view.lost) for view in report.policies])
    last = report.policies[-1]
    yield f"<p>{escape(last.name)}, in the names operators use:</p>"
    yield '<div class="scroll"><table><tr><th>bucket</th><th class="number">share</th>'
    yield "<th>of it</th><th>what it is</th></tr>"
    for bucket, told in BUCKETS.items():
        causes = {c: share for c, share in last.lost.items() if BUCKET_OF[c] == bucket}
        if causes:
            parts = ", ".join(f"{c} {100 * share:.2f} %" for c, share in causes.items())
            yield f'<tr><td>{bucket}</td><td class="number">{100 * sum(causes.values()):.2f} %</td>'
            yield f"<td>{escape(parts)}</td><td>{escape(told)}</td></tr>"
    yield "</table></div>"


def _throughput(report: SimulationReport) -> Iterator[str]:
    rows = [
        (view.name, f"{100 * view.goodput:.1f} %, {view.num_stops} stops", view.spans)
        for view in report.policies
    ]
    yield "<h2>Throughput over time</h2>"
    yield "<p>Relative to the undisturbed job; red marks are failures.</p>"
    yield throughput_chart(rows, report.failures, 0.0, report.hours)
    if report.hours > 1.5 * ZOOM_HOURS:
        start = _busiest(report.failures, report.hours)
        yield f"<p>The {ZOOM_HOURS:g} hours with most failures, closer:</p>"
        yield throughput_chart(rows, report.failures, start, start + ZOOM_HOURS)


def _busiest(failures: Sequence[float], hours: float) -> float:
    """The whole hour from which most failures follow within the zoomed span."""
    starts = range(max(1, int(hours - ZOOM_HOURS) + 1))
    return float(max(starts, key=lambda s: (sum(s <= f < s + ZOOM_HOURS for f in failures), -s)))


def _sweeps(report: SimulationReport) -> Iterator[str]:
    if report.by_scale:
        yield "<h2>Effective time against scale</h2>"
        yield "<p>The same devices in smaller clusters: failures are rarer in proportion. Names "
        yield "stand at the value of the largest cluster.</p>"
        yield line_chart(_series(report.by_scale), _labels(report.by_scale, "{:,.0f} devices"))
    if report.by_gap:
        yield "<h2>Effective time against the failure rate</h2>"
        yield "<p>The whole cluster, with a failure every so many minutes on average.</p>"
        yield line_chart(_series(report.by_gap), _labels(report.by_gap, "{:g} min"))


def _series(lines: Sequence[ChartLine]) -> list[tuple[str, tuple[tuple[float, float], ...]]]:
    return [(line.name, line.points) for line in lines]


def _labels(lines: Sequence[ChartLine], form: str) -> dict[float, str]:
    return {x: form.format(x) for line in lines for x, _ in line.points}


def _grid(cells: Sequence[CellView]) -> Iterator[str]:
    if not cells:
        return
    policies = list(dict.fromkeys(cell.policy for cell in cells))
    found = {(cell.situation, cell.policy): cell for cell in cells}
    yield "<h2>Strategy chosen against situation</h2>"
    yield "<p>Throughput after the decision, the strategy, and how long all workers wait for the "
    yield "change (detection not counted). No spare is used here.</p>"
    yield '<div class="scroll"><table class="grid-table"><tr><th>situation</th>'
    yield "".join(f"<th>{escape(policy)}</th>" for policy in policies) + "</tr>"
    for situation in dict.fromkeys(cell.situation for cell in cells):
        yield f"<tr><td>{escape(situation)}</td>"
        yield "".join(_cell(found[situation, policy]) for policy in policies) + "</tr>"
    yield "</table></div>"


def _cell(cell: CellView) -> str:
    wait = f"{cell.stall_s:.3g} s" if cell.stall_s < 120 else f"{cell.stall_s / 60:.3g} min"
    return (
        f'<td style="background:{shade(cell.rate)}"><b>{100 * cell.rate:.1f} %</b><br>'
        f"{escape(cell.strategy)}<br>{wait}</td>"
    )


def shade(rate: float) -> str:
    """From red at a third of the throughput to green at all of it."""
    hue = 120 * min(1.0, max(0.0, (rate - 0.33) / 0.67))
    return f"hsl({hue:.0f} 55% 78%)"


def _cards(policies: Sequence[PolicyView]) -> Iterator[str]:
    yield "<h2>The policies</h2>"
    yield "<p>Each peer is its published rule on one closed-form model, with one set of constants, "
    yield "mostly from far smaller clusters; Holdfast's throughput comes from its planner, some "
    yield "of its constants are goals. Each is relative to its own undisturbed pace.</p>"
    yield '<div class="scroll"><table><tr>'
    yield "".join(
        f"<th>{name}</th>" for name in ("policy", "rule", "source", "limits", "constants")
    )
    yield "</tr>"
    for view in policies:
        cells = (view.name, view.rule, view.source, view.limits, view.constants)
        yield "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
    yield "</table></div>"


def _decisions(report: SimulationReport) -> Iterator[str]:
    if not report.decisions:
        return
    yield f"<h2>{escape(report.policies[-1].name)}: the first {len(report.decisions)} "
    yield "lines of its journal</h2>"
    yield '<div class="scroll"><table><tr><th>time</th><th>event</th><th>what</th>'
    yield '<th>strategy</th><th class="number">pace</th><th class="number">stall</th>'
    yield "<th>reason</th></tr>"
    for view in report.decisions:
        decided = view.event == "decided"
        cells = (view.time, view.event, view.subject, view.strategy)
        yield "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        pace = f"{100 * view.rate:.1f} %" if decided else ""
        wait = f"{view.stall_s:.1f} s" if decided and view.stall_s else ""
        yield f'<td class="number">{pace}</td><td class="number">{wait}</td>'
        yield f"<td>{escape(view.reason)}</td></tr>"
    yield "</table></div>"
