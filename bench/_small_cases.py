"""The planner against the exhaustive search: cases that are written down, with at most 8 devices,
and cells drawn anew in every run, where the search may cut old tensor groups freely (*wide*), with
at most 6.
"""

import random
import statistics
from collections.abc import Iterator, Sequence

import msgspec

from _common import Goal
from _oracle import Oracle
from holdfast.plan.build import regular_plan
from holdfast.plan.copies import lost_slice
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Link, Profile
from holdfast.plan.units import Unit
from holdfast.planner.decision import Decision, decide
from holdfast.planner.health import FailureRates, Health, Situation, health_of
from holdfast.planner.search import ALL_ROUNDS, Options

FREE = Options(min_copies=1, check=False)
NO_CHANGES = FailureRates(prior_failures=0.0, prior_repairs=0.0)
TENSOR = {1: 1.0, 2: 0.53, 3: 0.38, 4: 0.3}
SMALL_UNITS = tuple(
    Unit(f"unit.{n}", (), cost, cost, cost, boundary_bytes=1)
    for n, cost in enumerate((0.6, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.4))
)
SMALL = Profile(tensor=TENSOR, within_node=Link(0.02))
SMALL_BATCH = 12
WIDE_DEVICES = 6
SLOW_DOWNS = (1.25, 1.5, 2.0, 3.0)


def small_shapes(most: int) -> Iterator[tuple[int, int, int]]:
    for replicas in range(1, most + 1):
        for stages in range(1, min(4, most // replicas) + 1):
            for tensor in range(1, min(4, most // (replicas * stages)) + 1):
                if replicas * stages * tensor > 1:
                    yield replicas, stages, tensor


def small_cases(plan: Plan) -> Iterator[tuple[list[str], dict[str, float]]]:
    """One worker of every stage of the first replica dead, or slow; one dead with one slow."""
    firsts = [stage.workers[0] for stage in plan.replicas[0]]
    for worker in firsts:
        yield [worker], {}
        yield [], {worker: 2.0}
        yield [], {worker: 3.0}
    last = plan.workers[-1]
    if last != firsts[0]:
        yield [firsts[0]], {last: 2.0}


def compare_with_oracle(quick: bool, goals: list[Goal], measured: dict[str, object]) -> None:
    oracle = make_oracle(wide=False)
    regrets: list[tuple[float, str]] = []
    for replicas, stages, tensor in small_shapes(5 if quick else 8):
        plan = small_plan(replicas, stages, tensor)
        for dead, slow in small_cases(plan):
            health = health_of(plan, dead, slow)
            if lost_slice(plan, dead) or sole_copy(plan, dead):
                continue
            mine = decide(Situation(plan, health, SMALL, NO_CHANGES), FREE)
            if mine.chosen is None:
                continue
            name = f"{replicas}x{stages}x{tensor} dead {dead} slow {slow}"
            regrets.append((regret_of(oracle, plan, health, mine), name))
    zero = sum(regret <= 1e-9 for regret, _ in regrets) / len(regrets)
    worst = max(regrets)
    words = f"{100 * zero:.1f} % without regret, worst {100 * worst[0]:.2f} % ({worst[1]})"
    print(f"{len(regrets)} cases of at most {5 if quick else 8} devices: {words}")
    for regret, name in sorted(regrets, reverse=True)[:12]:
        print(f"    {100 * regret:.2f} %  {name}")
    goals += [
        Goal("cases without regret", 100 * zero, 95, "%", at_most=False),
        Goal("worst regret", 100 * worst[0], 3, "%"),
    ]
    measured["oracle"] = {"cases": len(regrets), "without_regret": zero, "worst": worst[0],
                          "regrets": sorted(regrets, reverse=True)[:20]}  # fmt: skip


def compare_with_wide_oracle(
    seed: int, count: int, goals: list[Goal], measured: dict[str, object]
) -> None:
    """All rounds of the search on random cells."""
    oracle = make_oracle(wide=True)
    regrets: list[tuple[float, str]] = []
    for name, plan, health in small_cells(seed, count):
        options = msgspec.structs.replace(FREE, rounds=ALL_ROUNDS)
        mine = decide(Situation(plan, health, SMALL, NO_CHANGES), options)
        regrets.append((regret_of(oracle, plan, health, mine), name))
    mean, worst = statistics.mean(regret for regret, _ in regrets), max(regrets)
    zero = sum(regret <= 1e-9 for regret, _ in regrets) / len(regrets)
    print(f"{count} random cells of at most {WIDE_DEVICES} devices, seed {seed}, old tensor groups "
          f"cut freely: {100 * zero:.1f} % without regret, mean {100 * mean:.3f} %, worst "
          f"{100 * worst[0]:.2f} % ({worst[1]})")  # fmt: skip
    goals += [
        Goal("mean regret against the wide search", 100 * mean, 1, "%"),
        Goal("worst regret against the wide search", 100 * worst[0], 3, "%"),
    ]
    measured["wide"] = {"seed": seed, "cells": count, "without_regret": zero, "mean": mean,
                        "regrets": sorted(regrets, reverse=True)[:20]}  # fmt: skip


def small_cells(seed: int, count: int) -> Iterator[tuple[str, Plan, Health]]:
    """Random shapes, deaths and slow-downs that leave a live copy of everything."""
    chance = random.Random(seed)
    shapes = list(small_shapes(WIDE_DEVICES))
    while count:
        shape = chance.choice(shapes)
        plan = small_plan(*shape)
        workers = list(plan.workers)
        dead = chance.sample(workers, min(chance.choice((0, 1, 1, 2, 3)), len(workers) - 1))
        live = [worker for worker in workers if worker not in dead]
        hit = chance.sample(live, min(chance.choice((0, 1, 1, 2)), len(live)))
        slow = {worker: chance.choice(SLOW_DOWNS) for worker in hit}
        if (dead or slow) and not lost_slice(plan, dead) and not sole_copy(plan, dead):
            name = f"{'x'.join(map(str, shape))} dead {dead} slow {slow}"
            yield name, plan, health_of(plan, dead, slow)
            count -= 1


def make_oracle(*, wide: bool, schedules: Sequence[str] = ("1f1b", "zero-bubble")) -> Oracle:
    costs = [(u.forward, u.backward_input, u.backward_weight) for u in SMALL_UNITS]
    return Oracle(costs, TENSOR, (0.02, 0.0), wide=wide, schedules=schedules)


def small_plan(replicas: int, stages: int, tensor: int) -> Plan:
    return regular_plan(
        SMALL_UNITS, replicas=replicas, stages=stages, tensor=tensor,
        micro_batches=SMALL_BATCH, split="cost",
    )  # fmt: skip


def regret_of(oracle: Oracle, plan: Plan, health: Health, mine: Decision) -> float:
    """Plans of crossing routes, which the oracle has not, are added as they are."""
    others = [c.step_time for c in mine.candidates if c.strategy in ("reroute", "migrate")]
    assert mine.chosen is not None
    return mine.chosen.step_time / oracle_time(oracle, plan, health, others) - 1


def sole_copy(plan: Plan, dead: Sequence[str]) -> bool:
    """The units here have no tensors, so copies are counted by stages."""
    held = [False] * len(plan.units)
    for stage in plan.stages:
        if not any(worker in dead for worker in stage.workers):
            held[stage.first : stage.stop] = [True] * (stage.stop - stage.first)
    return not all(held)


def oracle_time(oracle: Oracle, plan: Plan, health: Health, others: Sequence[float]) -> float:
    groups: list[list[float]] = []
    hit: list[bool] = []
    for stage in plan.stages:
        live = [w for w in stage.workers if w not in health.gone]
        groups.append([health.slow_down(w) for w in live])
        slow = any(health.slow_down(w) > 1 for w in live)
        hit.append(slow or len(live) < len(stage.workers))
    return min([oracle.step_time(groups, hit, SMALL_BATCH), *others])
