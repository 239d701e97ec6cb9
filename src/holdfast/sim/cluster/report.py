"""From results to what the report shows."""

from collections.abc import Sequence

from holdfast.observe.simulation_report import (
    CellView,
    ChartLine,
    DecisionView,
    PolicyView,
    SimulationReport,
)
from holdfast.sim.cluster.job import SimulatedJob
from holdfast.sim.cluster.policy import Policy
from holdfast.sim.cluster.records import Result, SimulatedDecision
from holdfast.sim.cluster.sweep import Point, SweepCell

HOUR_MS = 3_600_000
MOST_DECISIONS = 60


def build_report(
    job: SimulatedJob,
    source: str,
    seed: int,
    found: Sequence[tuple[str, Policy, Result]],
    by_scale: Sequence[Point],
    by_gap: Sequence[Point],
    cells: Sequence[SweepCell],
) -> SimulationReport:
    titles = {name: policy.card.name for name, policy, _ in found}
    last = found[-1][2]
    hours = last.budget.total_ms / HOUR_MS
    return SimulationReport(
        title=f"{job.model} on {job.devices:,} devices",
        facts=_facts(job, source, seed, hours),
        hours=hours,
        failures=tuple(r.time_ms / HOUR_MS for r in last.journal if r.event == "failed"),
        policies=tuple(_view(policy, result) for _, policy, result in found),
        by_scale=_lines(by_scale, titles),
        by_gap=_lines(by_gap, titles),
        cells=tuple(
            CellView(c.situation, titles[c.policy], c.strategy, c.rate, c.stall_ms / 1e3)
            for c in cells
        ),
        decisions=tuple(_decision(record) for record in last.journal[:MOST_DECISIONS]),
    )


def _facts(job: SimulatedJob, source: str, seed: int, hours: float) -> tuple[tuple[str, str], ...]:
    return (
        ("nodes", f"{job.nodes:,} and {job.spare_nodes} spare"),
        ("pipelines", f"{job.pipelines:,} of {job.stages} stages x {job.tensor} tensor"),
        ("replicas", str(job.replicas)),
        ("micro-batches", f"{job.micro_batches} a pipeline and step"),
        ("failures", source),
        ("time", f"{hours:g} h, seed {seed}"),
    )


def _view(policy: Policy, result: Result) -> PolicyView:
    stalls = sorted(result.stalls_ms)
    return PolicyView(
        name=policy.card.name,
        goodput=result.goodput,
        lost={cause: result.budget.share(cause) for cause in result.budget.lost_ms},
        spans=tuple((s.start_ms / HOUR_MS, s.end_ms / HOUR_MS, s.rate) for s in result.spans),
        num_stops=result.num_failures,
        median_stall=f"{stalls[len(stalls) // 2] / 1e3:.1f} s" if stalls else "-",
        rule=policy.card.rule,
        source=policy.card.source,
        limits=policy.card.limits,
        constants=policy.costs.source,
    )


def _lines(points: Sequence[Point], titles: dict[str, str]) -> tuple[ChartLine, ...]:
    names = dict.fromkeys(point.policy for point in points)
    return tuple(
        ChartLine(titles[name], tuple((p.x, p.goodput) for p in points if p.policy == name))
        for name in names
    )


def _decision(record: SimulatedDecision) -> DecisionView:
    seconds = record.time_ms // 1000
    clock = f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return DecisionView(
        clock,
        record.event,
        record.subject,
        record.strategy,
        record.rate,
        record.stall_ms / 1e3,
        record.reason,
    )
