"""How true and how fast the timeline is.

Replay: one step after another of a real training job (64 GPUs: 4 replicas x 4 stages x 4 tensor,
32 micro-batches per replica, one worker slowed on purpose) is evaluated with its own recorded
durations, and the predicted time from the first forward to the last backward is compared with the
measured one. This tests the dependencies, not the prediction of durations.

Goals:
    the recorded orders are plain 1F1B
    mean error of the replayed span           at most 1 %
    workers over 1.1x the median of peers     exactly 1: the slowed one
    evaluation of 8 stages x 64 micro-batches at most 5 ms, order included
    evaluation of 64 replicas x 16 stages with 4,096 micro-batches at most 2 s, order included

List scheduling of a plan of that size with one lost worker is timed too, without a goal.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from _common import Goal, finish, interleave, parse_args, print_table
from holdfast.plan.build import regular_plan
from holdfast.plan.lanes import ComputeOp, LaneOrder, layout_of
from holdfast.plan.plan import Hop, Plan, Route
from holdfast.plan.profile import Profile, UnitCost, resolve
from holdfast.plan.timeline import Program, Timeline, compile_program, evaluate, run
from holdfast.plan.units import Unit
from holdfast.schedule.orders import compute_orders

DATA = Path(__file__).resolve().parents[2] / "shared/data/bytedance-straggler-osdi25"
RECORDED = "trace-AR.parquet"
KINDS = {"forward-compute": "F", "backward-compute": "B"}
REPLICAS, STAGES, MICRO_BATCHES = 4, 4, 32
SUSPECT = 1.1
"""A worker that computes this many times longer than its peers is named."""

EVEN = Profile(worker=UnitCost(1.0, 1.0, 1.0))


def main() -> None:
    args = parse_args(__doc__, extend=add_options)
    goals: list[Goal] = []
    measured: dict[str, object] = {}
    if not args.skip_replay and (folder := find_recorded(args.data)) is not None:
        replay(folder, goals, measured)
    speed(3 if args.quick else 11, goals, measured)
    finish(goals, args.json, measured)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, help=f"folder of {RECORDED}")
    parser.add_argument("--skip-replay", action="store_true", help="do without the recorded job")


# The recorded job.


def find_recorded(given: Path | None) -> Path | None:
    """The folder; None, and it is said, where there is none and none was named."""
    if given is not None or (DATA / RECORDED).is_file():
        return given or DATA
    print(f"left out, since {RECORDED} is not here: the recorded job (bench/README.md, --data)")
    return None


@dataclass(frozen=True)
class Step:
    """One recorded step: durations and orders in our numbers, and when what was measured."""

    durations: dict[ComputeOp, float]
    orders: list[LaneOrder]
    start: list[float]
    """Per lane, of its first computation; `end` likewise of its last."""
    end: list[float]

    def span(self, lanes: Sequence[int]) -> float:
        return max(self.end[lane] for lane in lanes) - min(self.start[lane] for lane in lanes)


def replay(folder: Path, goals: list[Goal], measured: dict[str, object]) -> None:
    steps = read_steps(folder / RECORDED)
    plan = job_plan()
    layout = layout_of(plan)
    planned = compute_orders(layout)
    program = compile_program(layout, planned)
    timelines = [replay_step(program, step.durations) for step in steps]
    same = sum(
        order == lane for step in steps for order, lane in zip(step.orders, planned, strict=True)
    )
    print(
        f"{len(steps)} steps; {same} of {len(steps) * len(planned)} recorded orders are plain 1F1B"
    )
    spans = compare_spans(steps, timelines)
    shares = compare_workers(plan, steps, timelines)
    slow = [lane for lane, stage in enumerate(plan.stages) if stage.name in shares]
    healthy = [replay_step(program, without(slow, step.durations)) for step in steps]
    show_effect(timelines, healthy)
    goals += [
        Goal(
            "recorded orders that are plain 1F1B",
            same / (len(steps) * len(planned)),
            1,
            at_most=False,
        ),
        Goal("mean error of the replayed span", 100 * spans["mean"], 1, "%"),
        Goal("workers far slower than their peers", len(shares), 1),
        Goal("slow workers seen", len(shares), 1, at_most=False),
    ]
    measured["replay"] = {"span_error": spans, "slow_workers": shares}


def job_plan() -> Plan:
    units = [Unit(f"stage.{number}") for number in range(STAGES)]
    total = REPLICAS * MICRO_BATCHES
    return regular_plan(units, replicas=REPLICAS, stages=STAGES, tensor=4, micro_batches=total)


def read_steps(path: Path) -> list[Step]:
    try:
        from pyarrow import parquet  # type: ignore[import-untyped]
    except ImportError:
        sys.exit("bench: the replay reads parquet: pip install pyarrow, or --skip-replay")
    if not path.is_file():
        sys.exit(f"bench: {path} is missing; name its folder with --data, or --skip-replay")
    names = ["step", "dp_rank", "stage", "optype", "mb_id", "start_ts", "duration"]
    table = parquet.read_table(path, columns=names)
    rows: dict[int, list[tuple[float, float, ComputeOp]]] = {}
    for row in zip(*(table[name].to_pylist() for name in names), strict=True):
        step, replica, stage, kind, number, start, duration = row
        if kind in KINDS:
            op = (KINDS[kind], replica * STAGES + stage, replica * MICRO_BATCHES + number)
            rows.setdefault(step, []).append((start, start + duration, op))
    return [make_step(sorted(rows[step])) for step in sorted(rows)]


def make_step(rows: list[tuple[float, float, ComputeOp]]) -> Step:
    lanes = range(REPLICAS * STAGES)
    per_lane = [[row for row in rows if row[2][1] == lane] for lane in lanes]
    return Step(
        durations={op: end - start for start, end, op in rows},
        orders=[[op for _, _, op in lane] for lane in per_lane],
        start=[lane[0][0] for lane in per_lane],
        end=[max(end for _, end, _ in lane) for lane in per_lane],
    )


def replay_step(program: Program, durations: Mapping[ComputeOp, float]) -> Timeline:
    costs = resolve(program.layout, Profile(source="recorded"))
    return run(program, [durations[op] for op in program.ops], costs)


def compare_spans(steps: list[Step], timelines: list[Timeline]) -> dict[str, float]:
    """Errors of the whole step, and of every replica by itself."""
    groups = {"all workers": [list(range(REPLICAS * STAGES))]}
    groups["each replica"] = [
        list(range(replica * STAGES, (replica + 1) * STAGES)) for replica in range(REPLICAS)
    ]
    rows, summary = [], {}
    for name, members in groups.items():
        errors = [
            predicted_span(timeline, lanes) / step.span(lanes) - 1
            for step, timeline in zip(steps, timelines, strict=True)
            for lanes in members
        ]
        sizes = [abs(error) for error in errors]
        summary[name] = {
            "mean": statistics.mean(sizes),
            "median": statistics.median(sizes),
            "worst": max(sizes),
            "signed": statistics.mean(errors),
        }
        rows.append(
            {"error of the span": name}
            | {key: f"{100 * value:.2f} %" for key, value in summary[name].items()}
        )
    print_table("Replay: predicted against measured, first forward to last backward", rows)
    return summary["all workers"]


def predicted_span(timeline: Timeline, lanes: Sequence[int]) -> float:
    spans = [timeline.spans(lane) for lane in lanes]
    return max(lane[-1].end for lane in spans) - min(lane[0].start for lane in spans)


def compare_workers(plan: Plan, steps: list[Step], timelines: list[Timeline]) -> dict[str, float]:
    """Compute time of every worker beside the median of the other replicas' same stage."""
    compute = [
        statistics.mean(timeline.busy(lane) for timeline in timelines)
        for lane in range(REPLICAS * STAGES)
    ]
    rows, slow = [], {}
    for lane, own in enumerate(compute):
        peers = [compute[other] for other in peers_of(lane)]
        ratio = own / statistics.median(peers)
        idle = 1 - statistics.mean(t.busy(lane) / t.iteration_time for t in timelines)
        name = plan.stages[lane].name
        rows.append({"worker": name, "computes, s": own, "of peers": ratio, "idle": f"{idle:.1%}"})
        if ratio > SUSPECT:
            slow[name] = ratio
            rows[-1]["worker"] = f"{name}  <- slow"
    print_table(f"Compute time per step ({len(steps)} steps)", rows)
    return slow


def peers_of(lane: int) -> list[int]:
    return [other for other in range(REPLICAS * STAGES) if other % STAGES == lane % STAGES != other]


def without(slow: Sequence[int], durations: Mapping[ComputeOp, float]) -> dict[ComputeOp, float]:
    """The same step if the slow workers had computed like the median of their peers."""
    healthy = dict(durations)
    for kind, stage, number in durations:
        if stage in slow:
            own = stage // STAGES
            others = [
                (kind, peer, number + (peer // STAGES - own) * MICRO_BATCHES)
                for peer in peers_of(stage)
            ]
            healthy[kind, stage, number] = statistics.median(durations[op] for op in others)
    return healthy


def show_effect(timelines: list[Timeline], healthy: list[Timeline]) -> None:
    rows = [
        {
            "step": name,
            "time, s": statistics.mean(t.iteration_time for t in lines),
            "bubble share": f"{statistics.mean(t.bubble_fraction for t in lines):.1%}",
        }
        for name, lines in (("as recorded", timelines), ("without the slow worker", healthy))
    ]
    print_table("What the slow worker costs", rows)


# Speed.


def speed(rounds: int, goals: list[Goal], measured: dict[str, object]) -> None:
    small = regular_plan(make_units(8), stages=8, micro_batches=64)
    large = regular_plan(make_units(16), replicas=64, stages=16, micro_batches=4096)
    lost = without_worker(large, "r0.s8")
    variants: dict[str, Callable[[], object]] = {
        "evaluate 8 stages x 64": lambda: evaluate(small, EVEN),
        "evaluate 64 x 16 stages, 4,096": lambda: evaluate(large, EVEN),
        "list scheduling, 64 x 16, one lost": lambda: compute_orders(layout_of(lost), EVEN),
    }
    seconds = interleave(variants, rounds)
    print_table(
        f"Speed, order included ({rounds} rounds)",
        [
            {
                "what": name,
                "median, ms": 1000 * statistics.median(values),
                "least": 1000 * min(values),
                "most": 1000 * max(values),
            }
            for name, values in seconds.items()
        ],
    )
    medians = [statistics.median(values) for values in seconds.values()]
    goals += [
        Goal("evaluation of 8 stages x 64", 1000 * medians[0], 5, "ms"),
        Goal("evaluation of 64 x 16 stages, 4,096 micro-batches", medians[1], 2, "s"),
    ]
    measured["speed_seconds"] = seconds


def make_units(count: int) -> list[Unit]:
    return [Unit(f"block.{number}") for number in range(count)]


def without_worker(plan: Plan, lost: str) -> Plan:
    """One stage is gone; its micro-batches pass the same stage of the other replicas in turn."""
    gone = plan.stage(lost)
    others = [s for s in plan.stages if s.index == gone.index and s.name != lost]
    routes: list[Route] = []
    num_moved = 0
    for route in plan.routes:
        if any(hop.stage == lost for hop in route):
            other = others[num_moved % len(others)].name
            route = tuple(
                Hop(other, hop.first, hop.stop) if hop.stage == lost else hop for hop in route
            )
            num_moved += 1
        routes.append(route)
    stages = tuple(stage for stage in plan.stages if stage.name != lost)
    return Plan(plan.units, stages, tuple(routes), plan.schedule)


if __name__ == "__main__":
    main()
