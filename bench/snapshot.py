"""What does a snapshot of every step cost a job, and does it lie in the bubbles?

Whole jobs as `holdfast run` runs them train a Llama on emulated pipelines: two replicas of three
stages, each worker on a node of its own, parity on. The arithmetic and the copies are real; devices
and links take the time of a model, so that six workers have their bubbles on a few cores. Short
jobs alternate, and the order turns from round to round:

    none          no snapshots; twice, for the A/A band
    bubbles       copies where the timeline of the plan has bubbles (the default)
    any wait      copies in every wait for another worker
    after step    copies right after the step, while training waits for them (not with `--quick`)
    light         as bubbles, but gradients instead of moments (not with `--quick`)

All but the first two save every step, whatever it costs (`max_cost = 0`). A job's time is the mean
of its steps without the first ones, in which it learns its times and places its copies. Beside it
stand the share of the bytes that was copied while the worker waited for another, and what training
waited for copies, both as the job itself reports them.

Goals: with copies in bubbles, the upper bound (95 %) of the median ratio to none is at most 1.01
plus the A/A band; at least 90 % of the bytes are copied inside bubbles.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median

from _common import Goal, compare, finish, parse_args, print_table
from _jobs import rotated, run_to_end
from holdfast.observe.events import Event, StepDone
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Profile
from holdfast.plan.timeline import Timeline, evaluate
from holdfast.runtime.config.data_sections import DataSection
from holdfast.runtime.config.emulate_sections import EmulateSection
from holdfast.runtime.config.emulation import emulation_of
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.job_sections import JobSection
from holdfast.runtime.config.model_sections import ModelSection
from holdfast.runtime.config.parallel_sections import ParallelSection
from holdfast.runtime.config.recovery_sections import RecoverySection, SnapshotSection
from holdfast.runtime.launch.fork_server import ForkServer
from holdfast.runtime.launch.prepare import prepare_job
from holdfast.snapshot.chunks import cut_chunks
from holdfast.snapshot.copying.copier import HOST_CHUNK_BYTES
from holdfast.snapshot.copying.copy_waits import place_copies
from holdfast.snapshot.placement import Placement
from holdfast.snapshot.share import plan_shares

WARM_UP_STEPS = 8
UNIT_MS = 3.0
RATE = 2e9
"""Bytes per second, for the picture only: what a core copies and checks."""

VARIANTS = {
    "none": SnapshotSection(every=0),
    "none again": SnapshotSection(every=0),
    "bubbles": SnapshotSection(max_cost=0.0, persist_every_s=0.0),
    "any wait": SnapshotSection(max_cost=0.0, persist_every_s=0.0, placement="waits"),
    "after step": SnapshotSection(max_cost=0.0, persist_every_s=0.0, placement="after_step"),
    "light": SnapshotSection(max_cost=0.0, persist_every_s=0.0, mode="light"),
}


@dataclass(frozen=True)
class Amount:
    variants: tuple[str, ...]
    rounds: int
    steps: int
    """Timed, of each job."""


FULL = Amount(tuple(VARIANTS), rounds=15, steps=30)
QUICK = Amount(tuple(VARIANTS)[:4], rounds=6, steps=10)


@dataclass(frozen=True)
class Run:
    """Per step."""

    seconds: float
    copied_bytes: float
    in_bubbles: float
    wait_s: float


def make_config(amount: Amount, snapshot: SnapshotSection, run_dir: Path) -> JobConfig:
    return JobConfig(
        job=JobSection(steps=WARM_UP_STEPS + amount.steps + 1, run_dir=str(run_dir), threads=1),
        model=ModelSection(
            dim=128, num_layers=6, num_heads=8, num_kv_heads=4, hidden=384, vocab=2048
        ),
        data=DataSection(seq_len=8, rows=1, micro_batches=12),
        parallel=ParallelSection(replicas=2, stages=3, devices_per_node=1),
        recovery=RecoverySection(plan="off"),
        snapshot=snapshot,
        emulate=EmulateSection(unit_ms=UNIT_MS, latency_ms=0.5, bandwidth_mb_per_s=1000),
    )


def run_one(amount: Amount, snapshot: SnapshotSection, fork_server: ForkServer) -> Run:
    steps: list[StepDone] = []

    def on_event(event: Event) -> None:
        # The last one is not timed: copies end with it, and workers probe their links.
        if isinstance(event, StepDone) and 0 <= event.step - WARM_UP_STEPS < amount.steps:
            steps.append(event)

    with tempfile.TemporaryDirectory() as folder:
        config = make_config(amount, snapshot, Path(folder) / "run")
        run_to_end(config, fork_server, on_event)
    return Run(
        seconds=mean(step.step_time_s for step in steps),
        copied_bytes=mean(step.copied_bytes for step in steps),
        in_bubbles=mean(step.copied_in_bubbles for step in steps),
        wait_s=mean(step.copy_wait_s for step in steps),
    )


def measure(amount: Amount) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {name: [] for name in amount.variants}
    with ForkServer() as fork_server:
        fork_server.wait_until_warm()
        for order in rotated(amount.variants, amount.rounds):
            for name in order:
                found[name].append(run_one(amount, VARIANTS[name], fork_server))
    return found


def judge(found: Mapping[str, Sequence[Run]]) -> tuple[list[Goal], list[dict[str, object]]]:
    times = {name: [run.seconds for run in runs] for name, runs in found.items()}
    band = compare(times["none again"], times["none"])
    width = max(abs(band.high - 1), abs(band.low - 1))
    base = [(a + b) / 2 for a, b in zip(times["none"], times["none again"], strict=True)]
    goals: list[Goal] = []
    rows: list[dict[str, object]] = []
    for name, runs in found.items():
        ratio = compare(times[name], base)
        copied = sum(run.copied_bytes for run in runs)
        share = sum(run.in_bubbles for run in runs) / copied if copied else 0.0
        rows.append(
            {
                "snapshots": name,
                "step ms": 1e3 * median(times[name]),
                "ratio": ratio.median,
                "low": ratio.low,
                "high": ratio.high,
                "MB a step": copied / len(runs) / 1e6,
                "in bubbles": share,
                "waited ms": 1e3 * median(run.wait_s for run in runs),
            }
        )
        if name == "bubbles":
            goals.append(Goal("bubbles: step time / none", ratio.high, 1.01 + width))
            goals.append(Goal("share of bytes in bubbles", share, 0.9, at_most=False))
    return goals, rows


# The placement as a picture.

WIDTH = 96


def draw(timeline: Timeline, placements: Mapping[str, Placement]) -> list[str]:
    """One line per worker: F, B computing, s copying, - messages and reductions, . idle."""
    scale = WIDTH / timeline.iteration_time
    lines: list[str] = []
    for worker, placement in placements.items():
        lane = timeline.layout.lane_of_worker[worker]
        line = ["-"] * WIDTH

        def paint(start: float, end: float, sign: str, line: list[str] = line) -> None:
            for at in range(round(start * scale), min(WIDTH, max(round(end * scale), 0))):
                line[at] = sign

        for filled in placement.filled:
            window = filled.window
            paint(window.start, window.end, ".")
            paint(window.start, window.start + filled.busy, "s")
        for span in timeline.spans(lane):
            paint(span.start, span.end, "U" if span.kind == "STEP" else span.kind)
        name = timeline.layout.plan.stages[timeline.layout.lane_stages[lane][0]].name
        lines.append(f"{name:6} {''.join(line)} {placement.share_in_gaps:.0%}")
    return lines


def show(plan: Plan, profile: Profile) -> list[str]:
    timeline = evaluate(plan, profile)
    placements = {
        layout.worker: place_copies(
            plan,
            profile,
            layout.worker,
            tuple(chunk.num_bytes for chunk in cut_chunks(layout, HOST_CHUNK_BYTES)),
            RATE,
        )
        for layout in plan_shares(plan).layouts
    }
    ms = 1e3 * timeline.iteration_time
    lines = [f"a step of {ms:.1f} ms by the timeline", *draw(timeline, placements)]
    print("\n".join(lines))
    return lines


def main() -> None:
    args = parse_args(__doc__)
    amount = QUICK if args.quick else FULL
    found = measure(amount)
    goals, rows = judge(found)
    print_table("A snapshot of every step of a job, emulated devices", rows)
    config = make_config(amount, VARIANTS["bubbles"], Path())
    job = prepare_job(config)
    emulated = emulation_of(config)
    assert emulated is not None
    pictures = show(job.plans[0].plan, emulated.profile)
    runs = {name: [asdict(run) for run in one] for name, one in found.items()}
    finish(goals, args.json, {"rows": rows, "runs": runs, "pictures": pictures})


if __name__ == "__main__":
    main()
