"""How good and how quick the planner's decisions are.

Two grids: the one below, written down before its first run, and random cells, drawn anew in every
run (the seed is printed; --seed repeats one). Every cell is a cluster and what is wrong with it;
the planner's plan and the plan of every peer (their rules: `planner/peers/`) are timed on the same
timeline, with the same splits, schedules and costs (H100, assumed). Cells without a live copy of
everything, or without room for the model, are in the fixed grid: there the planner has to say so.

Goals:
    no peer is faster than the chosen plan by more than 0.5 %, in any cell: with one round of search
        in the fixed grid, with all rounds in the random one
    throughput after failures / share of healthy devices, mean over all cells   at least 0.95
    cells where state is lost or nothing fits are recognised                   all
    search time, dry run of the winner apart: 32 devices 20 ms, 256 devices 100 ms,
        1,024 devices 0.5 s, 16,384 devices 1 s
    against an exhaustive search (space: `_oracle.py`) on at most 8 devices: regret 0 in 95 % of
        the cases, never above 3 %
    against one that may cut old tensor groups freely, on 200 random cells of at most 6 devices,
        with all rounds: regret at most 1 % in the mean, never above 3 %

The comparison is on throughput alone, so plans with one live copy are allowed to all
(`min_copies` 1); what the default of two copies costs is printed beside it. A running job asks with
less freedom and less time: what it is answered on the same random cells is printed, without a goal
(`_as_a_job.py`).

Search times: a search is one thread and waits for nothing. Its goals are decided on processor time,
the best of many rounds (cases of one size take turns): other work on the machine can only add to
that. The median wall time of the same rounds is printed beside it.
"""

import statistics
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp, log
from random import SystemRandom
from time import perf_counter, process_time

import msgspec

from _as_a_job import compare_as_a_job_asks
from _common import Goal, finish, parse_args, print_table
from _random_cells import random_cells
from _small_cases import compare_with_oracle, compare_with_wide_oracle
from holdfast.plan.build import regular_plan
from holdfast.plan.copies import lost_slice
from holdfast.plan.model_catalog import llama_shape, llama_units
from holdfast.plan.plan import Limits, Plan
from holdfast.plan.profile import Profile
from holdfast.planner.decision import decide
from holdfast.planner.hardware import hardware, hardware_profile
from holdfast.planner.health import Health, Situation, health_of
from holdfast.planner.peers.answers import best_answer
from holdfast.planner.peers.systems import PEERS
from holdfast.planner.search import ALL_ROUNDS, Options
from holdfast.planner.search_view import SearchView
from holdfast.planner.step_cost import CostModel

# The grid.

CLUSTERS = (
    # model, replicas, stages, tensor, micro-batches per replica
    ("llama-1b", 8, 2, 1, 16),
    ("llama-7b", 2, 2, 4, 16),
    ("llama-3b", 4, 4, 2, 16),
    ("llama-13b", 2, 4, 4, 16),
    ("llama-30b", 2, 8, 4, 32),
    ("llama-7b", 16, 2, 4, 16),
    ("llama-70b", 4, 16, 4, 64),
    ("llama-13b", 64, 4, 4, 16),
    ("llama-70b", 16, 8, 8, 32),
)
QUICK = 4
"""So many of them with --quick."""

WEAK, MEDIUM, SEVERE = 0.35, 0.55, 0.70
"""Share of its speed a slow device has lost."""

SITUATIONS: tuple[tuple[str, int, tuple[float, ...]], ...] = (
    # name, dead devices (spread over the cluster), losses of slow devices (spread likewise)
    ("1 dead", 1, ()),
    ("2 dead", 2, ()),
    ("3 dead", 3, ()),
    ("1/8 dead", -8, ()),
    ("1 slow 35 %", 0, (WEAK,)),
    ("1 slow 55 %", 0, (MEDIUM,)),
    ("1 slow 70 %", 0, (SEVERE,)),
    ("2 slow 55 %", 0, (MEDIUM, MEDIUM)),
    ("4 slow 35-70 %", 0, (WEAK, MEDIUM, SEVERE, WEAK)),
    ("1 dead, 1 slow 55 %", 1, (MEDIUM,)),
    ("2 dead, 2 slow 35, 70 %", 2, (WEAK, SEVERE)),
)
SPECIAL = ("a node dead", "first stage dead everywhere", "one device left")

SIZES = (
    # devices, model, replicas, stages, tensor, micro-batches per replica, goal in milliseconds
    (32, "llama-13b", 2, 4, 4, 16, 20.0),
    (256, "llama-70b", 4, 8, 8, 32, 100.0),
    (1024, "llama-70b", 16, 8, 8, 32, 500.0),
    (16384, "llama-70b", 128, 16, 8, 64, 1000.0),
)
LEAST_ROUNDS = 5
LARGE = 1024
"""Devices; of larger clusters only the first round is timed."""
TIMED: tuple[tuple[int, tuple[float, ...]], ...] = ((1, ()), (0, (MEDIUM,)), (2, (SEVERE,)))

FREE = Options(min_copies=1, check=False)
BEST = Options(min_copies=1, check=False, improve=True)


@dataclass(frozen=True)
class Cell:
    cluster: str
    situation: str
    plan: Plan
    health: Health
    profile: Profile


def main() -> None:
    args = parse_args(__doc__, extend=add_seed)
    goals: list[Goal] = []
    measured: dict[str, object] = {}
    compare_with_peers(args.quick, goals, measured)
    compare_on_random_cells(args.seed, 16 if args.quick else 200, goals, measured)
    compare_as_a_job_asks(args.seed, 16 if args.quick else 200, measured)
    time_searches(0.4 if args.quick else 1.5, goals, measured)
    compare_with_oracle(args.quick, goals, measured)
    compare_with_wide_oracle(args.seed, 16 if args.quick else 200, goals, measured)
    finish(goals, args.json, measured)


def add_seed(parser: ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(10**6))


def make_plan(
    model: str, replicas: int, stages: int, tensor: int, per_replica: int
) -> tuple[Plan, Profile]:
    units = llama_units(llama_shape(model))
    plan = regular_plan(
        units,
        replicas=replicas,
        stages=stages,
        tensor=tensor,
        micro_batches=replicas * per_replica,
        split="cost",
        limits=Limits(device_bytes=hardware("h100").device_bytes),
    )
    return plan, hardware_profile("h100", units)


def spread(plan: Plan, count: int, shift: int) -> list[str]:
    """Workers at regular distances, on different places of their teams."""
    total = len(plan.workers)
    picked = [(n * total // count + 5 * n + shift) % total for n in range(count)]
    return [plan.workers[n] for n in dict.fromkeys(picked)]


def health_in(plan: Plan, dead: int, losses: Sequence[float]) -> Health:
    count = dead if dead >= 0 else len(plan.workers) // -dead
    gone = spread(plan, count, 1) if count else []
    slow = dict(zip(spread(plan, len(losses), 2), (1 / (1 - x) for x in losses), strict=False))
    return health_of(plan, gone, {w: f for w, f in slow.items() if w not in gone})


def cells(quick: bool) -> Iterator[Cell]:
    for shape in CLUSTERS[:QUICK] if quick else CLUSTERS:
        plan, profile = make_plan(*shape)
        name = f"{shape[0]} {shape[1]}x{shape[2]}x{shape[3]}"
        for situation, dead, losses in SITUATIONS:
            yield Cell(name, situation, plan, health_in(plan, dead, losses), profile)
        everywhere = [stage.workers[0] for stage in plan.stages if stage.index == 0]
        special = (["n0"], everywhere, list(plan.workers[1:]))
        for situation, names in zip(SPECIAL, special, strict=True):
            yield Cell(name, situation, plan, health_of(plan, names), profile)


# Against peers.


def compare_with_peers(quick: bool, goals: list[Goal], measured: dict[str, object]) -> None:
    rows: list[dict[str, object]] = []
    shares: list[float] = []
    two_copies: list[float] = []
    regrets: list[tuple[float, str]] = []
    ratios: dict[str, list[float]] = {peer.card.name: [] for peer in PEERS}
    failed: dict[str, int] = dict.fromkeys(ratios, 0)
    said = expected = 0
    for cell in cells(quick):
        lost = bool(lost_slice(cell.plan, cell.health.dead))
        mine = decide(Situation(cell.plan, cell.health, cell.profile), FREE)
        if lost or mine.plan is None:
            expected += 1
            said += bool(mine.lost) == lost and bool(mine.lost or mine.reason)
            rows.append(row(cell, "lost" if mine.lost else "nothing fits", 0.0, 0.0, "", 0.0))
            continue
        assert mine.chosen is not None
        safe = decide(Situation(cell.plan, cell.health, cell.profile), Options(check=False))
        reference = healthy_time(cell.plan, cell.profile)
        share = cell.health.capacity(cell.plan.workers) / len(cell.plan.workers)
        shares.append(reference / mine.chosen.step_time / share)
        if safe.chosen is not None:
            two_copies.append(reference / safe.chosen.step_time / share)
        times = peer_times(cell)
        for name, time in times.items():
            if time is None:
                failed[name] += 1
            else:
                ratios[name].append(time / mine.chosen.step_time)
        found = {name: time for name, time in times.items() if time is not None}
        best = min(found, key=lambda name: (found[name], name))
        regret = mine.chosen.step_time / found[best] - 1
        regrets.append((regret, f"{cell.cluster}, {cell.situation}"))
        rows.append(row(cell, mine.chosen.strategy, shares[-1], share, best, -100 * regret))
    print_table("Chosen plans: throughput / healthy share; gain over the best peer in %", rows)
    print_peers(ratios, failed)
    worst = max(regrets)
    low = min(range(len(shares)), key=shares.__getitem__)
    print(f"throughput / healthy share: mean {statistics.mean(shares):.4f}, "
          f"worst {shares[low]:.4f}; with two live copies kept: "
          f"mean {statistics.mean(two_copies):.4f}, worst {min(two_copies):.4f}")  # fmt: skip
    print(f"worst cell against peers: {worst[1]}: {100 * worst[0]:+.3f} %")
    goals += [
        Goal("step longer than the best peer's, worst cell", 100 * worst[0], 0.5, "%"),
        Goal("throughput / healthy share, mean", statistics.mean(shares), 0.95, at_most=False),
        Goal("hopeless cells recognised", said / max(1, expected), 1, at_most=False),
    ]
    measured["grid"] = rows
    measured["peers"] = {name: mean_ratio(values) for name, values in ratios.items()}


def row(
    cell: Cell, strategy: str, per_share: float, share: float, peer: str, gain: float
) -> dict[str, object]:
    return {
        "cluster": cell.cluster,
        "situation": cell.situation,
        "chosen": strategy,
        "of share": round(per_share, 4),
        "share": round(share, 4),
        "best peer": peer,
        "gain %": round(gain, 3),
    }


def healthy_time(plan: Plan, profile: Profile) -> float:
    """Of the best layout of all devices that the planner finds, with the same freedom."""
    chosen = decide(Situation(plan, Health(), profile), BEST).chosen
    assert chosen is not None
    return chosen.step_time


def peer_times(cell: Cell) -> dict[str, float | None]:
    cost = CostModel(cell.plan, cell.profile)
    view = SearchView(cell.plan, cell.health, cost, ("1f1b", "zero-bubble"))
    times: dict[str, float | None] = {}
    for peer in PEERS:
        found = best_answer(peer, view, 0.0)
        times[peer.card.name] = found.step_time if found is not None else None
    return times


def mean_ratio(values: Sequence[float]) -> float:
    return exp(statistics.mean(log(value) for value in values)) if values else 0.0


def print_peers(ratios: dict[str, list[float]], failed: dict[str, int]) -> None:
    rows = [
        {
            "peer": name,
            "mean ratio": round(mean_ratio(values), 3),
            "least": round(min(values, default=0.0), 4),
            "largest": round(max(values, default=0.0), 3),
            "cells it cannot run": failed[name],
        }
        for name, values in ratios.items()
    ]
    print_table("Our throughput / theirs (published for Chameleon: 1.229 and 1.355 over "
                "Oobleck and ReCycle)", rows)  # fmt: skip


# Random cells.


def compare_on_random_cells(
    seed: int, count: int, goals: list[Goal], measured: dict[str, object]
) -> None:
    """One round of search and all of them, beside the best peer of every cell."""
    regrets: dict[int, list[tuple[float, str]]] = {1: [], ALL_ROUNDS: []}
    times: dict[int, list[float]] = {1: [], ALL_ROUNDS: []}
    for drawn in random_cells(seed, count):
        cell = Cell(*drawn)
        peers = [time for time in peer_times(cell).values() if time is not None]
        if not peers:
            continue
        for rounds in (1, ALL_ROUNDS):
            options = msgspec.structs.replace(FREE, rounds=rounds)
            begin = process_time()
            mine = decide(Situation(cell.plan, cell.health, cell.profile), options).chosen
            times[rounds].append(1e3 * (process_time() - begin))
            regret = mine.step_time / min(peers) - 1 if mine is not None else 1.0
            regrets[rounds].append((regret, f"{cell.cluster}, {cell.situation}"))
    rows = [
        {
            "rounds": rounds,
            "cells": len(found),
            "over 0.5 %": sum(regret > 0.005 for regret, _ in found),
            "worst %": 100 * max(found)[0],
            "mean gain %": -100 * statistics.mean(regret for regret, _ in found),
            "median ms": statistics.median(times[rounds]),
            "longest ms": max(times[rounds]),
        }
        for rounds, found in regrets.items()
    ]
    print_table(f"Random cells, seed {seed}: against the best peer of each", rows)
    for rounds, found in regrets.items():
        worst = max(found)
        print(f"worst after {rounds} rounds: {worst[1]}: {100 * worst[0]:+.3f} %")
    last = 100 * max(regrets[ALL_ROUNDS])[0]
    goals.append(Goal("random cells, all rounds, worst against peers", last, 0.5, "%"))
    measured["random"] = {"seed": seed, "rows": rows}


# Search time.


def time_searches(seconds: float, goals: list[Goal], measured: dict[str, object]) -> None:
    """`seconds` of processor time for every case, but at least `LEAST_ROUNDS`."""
    rows: list[dict[str, object]] = []
    for devices, *shape, limit in SIZES:
        plan, profile = make_plan(*shape)  # type: ignore[arg-type]
        situations = [Situation(plan, health_in(plan, *case), profile) for case in TIMED]
        timings = [Timing() for _ in TIMED]
        while any(timing.wants(seconds) for timing in timings):
            for situation, timing in zip(situations, timings, strict=True):
                timing.add(situation, Options(check=False))
        for (dead, losses), situation, timing in zip(TIMED, situations, timings, strict=True):
            checked = Timing()
            checked.add(situation, Options())
            rows.append({
                "devices": devices, "dead": dead, "slow": len(losses), "rounds": len(timing.wall),
                "search ms": round(timing.best, 1),
                "median wall ms": round(statistics.median(timing.wall), 1),
                "with dry run ms": round(checked.best, 1),
                "all rounds ms": round(whole_search(situation), 1) if devices <= LARGE else "-",
            })  # fmt: skip
        worst = max(timing.best for timing in timings)
        goals.append(Goal(f"search time, {devices} devices", worst, float(limit), "ms"))
    print_table("Search time: processor milliseconds, the best round", rows)
    measured["search"] = rows


def whole_search(situation: Situation) -> float:
    """Once, dry run included: what the last answer of a search takes."""
    timing = Timing()
    timing.add(situation, Options(rounds=ALL_ROUNDS))
    return timing.best


class Timing:
    """Milliseconds of the same search, again and again."""

    def __init__(self) -> None:
        self.processor: list[float] = []
        self.wall: list[float] = []

    def add(self, situation: Situation, options: Options) -> None:
        wall, processor = perf_counter(), process_time()
        decide(situation, options)
        self.processor.append(1e3 * (process_time() - processor))
        self.wall.append(1e3 * (perf_counter() - wall))

    def wants(self, seconds: float) -> bool:
        return len(self.wall) < LEAST_ROUNDS or sum(self.processor) < 1e3 * seconds

    @property
    def best(self) -> float:
        return min(self.processor)


if __name__ == "__main__":
    main()
