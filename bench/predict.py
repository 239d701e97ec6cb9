"""Does the timeline, fed with measured costs, predict how long real steps take?

Costs are measured once per way of computing (whole units, units on two tensor ranks, units with a
split backward pass), then plans over one and two single-threaded workers are run for real and
compared with what the timeline says. There are two rounds, each with its own costs, because the
machine's speed drifts; times are means over both, and the two runs of a plan give the A/A band.

Goals: the mean error is below 10 %, and where two plans differ by more than the band, the timeline
puts them in the right order.
"""

import tempfile
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from _common import Goal, finish, parse_args, print_table
from holdfast.control.worker_reports import Planned
from holdfast.observe.run_directory import PROFILE
from holdfast.plan.build import deal_routes, regular_plan
from holdfast.plan.plan import Hop, Plan, Schedule, whole_route
from holdfast.plan.profile import Profile, parse_profile
from holdfast.plan.timeline import evaluate
from holdfast.runtime.config.data_sections import DataSection
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.job_sections import JobSection
from holdfast.runtime.config.model_sections import ModelSection
from holdfast.runtime.config.model_source import model_units
from holdfast.runtime.config.recovery_sections import SnapshotSection
from holdfast.runtime.launch.fork_server import ForkServer
from holdfast.runtime.launch.launcher import run_job
from holdfast.runtime.launch.prepare import make_job

MICRO_BATCHES = 8
WARM_UP_STEPS = 2
CONFIG = JobConfig(
    job=JobSection(steps=1, threads=1),
    model=ModelSection(dim=192, num_layers=6, num_heads=8, num_kv_heads=4, hidden=576, vocab=1024),
    data=DataSection(seq_len=64, rows=2),
    snapshot=SnapshotSection(every=0),
)
UNITS = model_units(CONFIG)


def make_plans() -> dict[str, Plan]:
    def regular(**options: Any) -> Plan:
        chosen: dict[str, Any] = {"micro_batches": MICRO_BATCHES, "split": "cost"} | options
        return regular_plan(UNITS, **chosen)

    two = regular(replicas=2)
    chains = [whole_route(stages) for stages in two.replicas.values()]
    uneven = msgspec.structs.replace(two, routes=deal_routes(chains, MICRO_BATCHES, (6, 2)))
    crossing = (Hop("r0.s0", 0, 4), Hop("r1.s0", 4, len(UNITS)))
    return {
        "one worker": regular(),
        "replicas 2": two,
        "replicas 2, 6 + 2 micro-batches": uneven,
        "two routes cross replicas": msgspec.structs.replace(
            two, routes=(crossing, crossing, *two.routes[2:])
        ),
        "stages 2, 1f1b": regular(stages=2),
        "stages 2, 1f1b, 4 micro-batches": regular(stages=2, micro_batches=4),
        "stages 2, gpipe": regular(stages=2, schedule="gpipe"),
        "stages 2, split 3 + 5": regular(stages=2, split=(3, len(UNITS) - 3)),
        "stages 2, recompute": regular(stages=2, schedule=Schedule("1f1b", recompute=True)),
        "stages 2, zero-bubble": regular(stages=2, schedule="zero-bubble"),
        "stages 2, interleaved": regular(stages=2, virtual=2, schedule="interleaved"),
        "tensor 2": regular(tensor=2),
    }


class Bench:
    """Runs plans as jobs, from one warm fork server."""

    def __init__(self, num_steps: int, fork_server: ForkServer, folder: Path) -> None:
        self._num_steps, self._fork_server, self._folder = num_steps, fork_server, folder
        self._num_runs = 0

    def run(self, plan: Plan) -> tuple[float, Profile]:
        """Median step time (of the slowest worker in every step), and what was measured."""
        self._num_runs += 1
        directory = self._folder / f"run-{self._num_runs}"
        section = msgspec.structs.replace(CONFIG.job, steps=self._num_steps, run_dir=str(directory))
        job = make_job(msgspec.structs.replace(CONFIG, job=section), [Planned(0, plan)])
        result = run_job(job, fork_server=self._fork_server)
        seconds = [step.step_time_s for step in result.steps[WARM_UP_STEPS:]]
        return median(seconds), parse_profile((directory / PROFILE).read_text())

    def calibrate(self, plans: dict[str, Plan]) -> dict[str, Profile]:
        """Profiles by way of computing, each measured on one plan only."""
        _, whole = self.run(plans["replicas 2"])
        _, linked = self.run(plans["stages 2, 1f1b"])
        _, split = self.run(plans["stages 2, zero-bubble"])
        _, tensor = self.run(plans["tensor 2"])
        whole = msgspec.structs.replace(
            whole, within_node=linked.within_node, between_nodes=linked.between_nodes
        )
        return {
            "whole": whole,
            "split": msgspec.structs.replace(whole, unit=split.unit),
            "tensor": msgspec.structs.replace(whole, unit=tensor.unit, tensor=tensor.tensor),
        }


def profile_for(name: str, profiles: dict[str, Profile]) -> Profile:
    if "zero-bubble" in name:
        return profiles["split"]
    return profiles["tensor" if "tensor" in name else "whole"]


def judge(rows: list[dict[str, Any]], band: float) -> tuple[float, int, int]:
    """(mean error, pairs in the wrong order, pairs that differ by more than the band)."""
    errors = [abs(row["error %"]) for row in rows]
    wrong = compared = 0
    for a, b in combinations(rows, 2):
        if abs(a["measured ms"] / b["measured ms"] - 1) <= band:
            continue
        compared += 1
        measured = a["measured ms"] < b["measured ms"]
        wrong += measured != (a["predicted ms"] < b["predicted ms"])
    return sum(errors) / len(errors), wrong, compared


def compare(bench: Bench) -> list[dict[str, Any]]:
    plans = make_plans()
    rounds: list[dict[str, float]] = []
    predictions: list[dict[str, float]] = []
    for _ in range(2):
        profiles = bench.calibrate(plans)
        rounds.append({name: bench.run(plan)[0] for name, plan in plans.items()})
        predictions.append(
            {
                name: evaluate(plan, profile_for(name, profiles)).iteration_time
                for name, plan in plans.items()
            }
        )
    rows: list[dict[str, Any]] = []
    for name in plans:
        predicted = (predictions[0][name] + predictions[1][name]) / 2
        measured = (rounds[0][name] + rounds[1][name]) / 2
        rows.append(
            {
                "plan": name,
                "predicted ms": 1e3 * predicted,
                "measured ms": 1e3 * measured,
                "error %": 100 * (predicted / measured - 1),
                "run to run %": 100 * (rounds[1][name] / rounds[0][name] - 1),
            }
        )
    return rows


def main() -> None:
    args = parse_args(__doc__)
    with ForkServer() as fork_server, tempfile.TemporaryDirectory() as folder:
        fork_server.wait_until_warm()
        rows = compare(Bench(5 if args.quick else 14, fork_server, Path(folder)))
    band = sorted(abs(row["run to run %"]) for row in rows)[-2] / 100
    error, wrong, compared = judge(rows, max(band, 0.03))
    print_table("Predicted against measured step time", rows)
    print(f"A/A band (second largest run-to-run difference): {100 * band:.1f} %")
    print(f"pairs that differ by more than the band: {compared}, in the wrong order: {wrong}")
    goals = [Goal("mean error", error, 10, "%"), Goal("pairs in the wrong order", wrong, 0)]
    finish(goals, args.json, {"rows": rows, "band": band, "compared": compared})


if __name__ == "__main__":
    main()
