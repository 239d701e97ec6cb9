"""Does the timeline, fed with measured costs, predict how long real steps take?

Costs are measured once per way of computing (whole units, units on two tensor ranks, units with a
split backward pass), then ten plans over one and two single-threaded workers are run for real and
compared with what the timeline says. Every plan is run twice, in two rounds that go through all
plans; the two runs of a plan give the A/A band.

Goals: the mean error is below 10 %, and where two plans differ by more than the band, the timeline
puts them in the right order.
"""

import multiprocessing
import os
from itertools import combinations
from statistics import median
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from _common import Goal, finish, parse_args, print_table

from holdfast.engine.data import SyntheticTask
from holdfast.engine.trainer import ChangeReport, Planned, StepReport, Trainer, TrainerConfig
from holdfast.models.model import LlamaModel
from holdfast.plan.build import deal_routes, regular_plan
from holdfast.plan.catalog import LlamaShape, llama_units
from holdfast.plan.plan import Hop, Plan, Schedule, whole_route
from holdfast.plan.profile import Profile, UnitCost
from holdfast.plan.text import format_plan, parse_plan
from holdfast.plan.timeline import evaluate

SHAPE = LlamaShape(dim=192, num_layers=6, num_heads=8, num_kv_heads=4, hidden=576, vocab=1024)
ROWS, LENGTH, MICRO_BATCHES = 2, 96, 8
UNITS = llama_units(SHAPE, ROWS * LENGTH)


def make_plans() -> dict[str, Plan]:
    def regular(**options: Any) -> Plan:
        return regular_plan(UNITS, **({"micro_batches": MICRO_BATCHES, "split": "cost"} | options))

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


class Recorder:
    def __init__(self) -> None:
        self.seconds: list[float] = []

    def step_done(self, report: StepReport) -> None:
        self.seconds.append(report.seconds)

    def plan_changed(self, report: ChangeReport) -> None:
        pass

    def stop_requested(self) -> bool:
        return False


def worker(name: str, port: int, plan_text: str, num_steps: int, results: Any) -> None:
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(name[-1]) % len(cores)]})
    recorder = Recorder()
    trainer = Trainer(
        name,
        [Planned(0, parse_plan(plan_text))],
        model=LlamaModel(SHAPE),
        data=SyntheticTask(SHAPE.vocab, LENGTH, ROWS, seed=0),
        config=TrainerConfig(num_steps=num_steps),
        store=dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False),
        reporter=recorder,
    )
    trainer.run()
    results.put((name, recorder.seconds[2:], msgspec.json.encode(trainer.profile())))
    trainer.close()


def run_plan(plan: Plan, num_steps: int) -> tuple[float, list[Profile]]:
    """Median step time (of the slowest worker in every step), and what the workers measured."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("forkserver")
    results = context.Queue()
    processes = [
        context.Process(
            target=worker, args=(name, store.port, format_plan(plan), num_steps, results)
        )
        for name in plan.workers
    ]
    for process in processes:
        process.start()
    found = [results.get(timeout=300) for _ in processes]
    for process in processes:
        process.join(timeout=60)
    steps = zip(*(seconds for _, seconds, _ in found), strict=True)
    profiles = [msgspec.json.decode(raw, type=Profile) for _, _, raw in found]
    return median(max(step) for step in steps), profiles


def merge(profiles: list[Profile]) -> Profile:
    """One profile from those of several workers: medians."""

    def middle(name: str) -> float:
        return median(getattr(profile, name) for profile in profiles)

    costs: dict[str, list[UnitCost]] = {}
    for profile in profiles:
        for unit, cost in profile.unit.items():
            costs.setdefault(unit, []).append(cost)
    unit = {
        name: UnitCost(
            median(cost.forward for cost in found),
            median(cost.backward_input for cost in found),
            median(cost.backward_weight for cost in found),
        )
        for name, found in costs.items()
    }
    figures = {name: middle(name) for name in ("action", "agree", "update")}
    return msgspec.structs.replace(profiles[0], unit=unit, **figures)


def calibrate(plans: dict[str, Plan], num_steps: int) -> dict[str, Profile]:
    """Profiles by way of computing, each measured on one plan only."""
    whole = merge(run_plan(plans["replicas 2"], num_steps)[1])
    linked = merge(run_plan(plans["stages 2, 1f1b"], num_steps)[1])
    whole = msgspec.structs.replace(
        whole, within_node=linked.within_node, between_nodes=linked.between_nodes
    )
    split = merge(run_plan(plans["stages 2, zero-bubble"], num_steps)[1])
    tensor = merge(run_plan(plans["tensor 2"], num_steps)[1])
    return {
        "whole": whole,
        "split": msgspec.structs.replace(whole, unit=split.unit),
        "tensor": msgspec.structs.replace(whole, unit=tensor.unit, tensor={2: 1.0}),
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


def main() -> None:
    args = parse_args(__doc__)
    multiprocessing.get_context("forkserver").set_forkserver_preload(["holdfast.engine.trainer"])
    num_steps = 8 if args.quick else 24
    plans = make_plans()
    profiles = calibrate(plans, num_steps)
    rounds = [
        {name: run_plan(plan, num_steps)[0] for name, plan in plans.items()} for _ in range(2)
    ]
    rows: list[dict[str, Any]] = []
    for name, plan in plans.items():
        predicted = evaluate(plan, profile_for(name, profiles)).iteration_time
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
    band = sorted(abs(row["run to run %"]) for row in rows)[-2] / 100
    error, wrong, compared = judge(rows, max(band, 0.03))
    print_table("Predicted against measured step time", rows)
    print(f"A/A band (second largest run-to-run difference): {100 * band:.1f} %")
    print(f"pairs that differ by more than the band: {compared}, in the wrong order: {wrong}")
    goals = [Goal("mean error", error, 10, "%"), Goal("pairs in the wrong order", wrong, 0)]
    finish(goals, args.json, {"rows": rows, "band": band, "compared": compared})


if __name__ == "__main__":
    main()
