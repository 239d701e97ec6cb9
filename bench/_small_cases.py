"""The planner against the exhaustive search, on at most 8 devices."""

from collections.abc import Iterator, Sequence

from _common import Goal
from _oracle import Oracle
from holdfast.plan.build import regular_plan
from holdfast.plan.copies import lost_slice
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Link, Profile
from holdfast.plan.units import Unit
from holdfast.planner.decision import decide
from holdfast.planner.health import FailureRates, Health, Situation, health_of
from holdfast.planner.search import Options

FREE = Options(min_copies=1, check=False)
NO_CHANGES = FailureRates(prior_failures=0.0, prior_repairs=0.0)
TENSOR = {1: 1.0, 2: 0.53, 3: 0.38, 4: 0.3}
SMALL_UNITS = tuple(
    Unit(f"unit.{n}", (), cost, cost, cost, boundary_bytes=1)
    for n, cost in enumerate((0.6, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.4))
)
SMALL = Profile(tensor=TENSOR, within_node=Link(0.02))
SMALL_BATCH = 12


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
    costs = [(u.forward, u.backward_input, u.backward_weight) for u in SMALL_UNITS]
    oracle = Oracle(costs, TENSOR, (0.02, 0.0))
    regrets: list[tuple[float, str]] = []
    for replicas, stages, tensor in small_shapes(5 if quick else 8):
        plan = regular_plan(
            SMALL_UNITS, replicas=replicas, stages=stages, tensor=tensor,
            micro_batches=SMALL_BATCH, split="cost",
        )  # fmt: skip
        for dead, slow in small_cases(plan):
            health = health_of(plan, dead, slow)
            if lost_slice(plan, dead) or sole_copy(plan, dead):
                continue
            mine = decide(Situation(plan, health, SMALL, NO_CHANGES), FREE)
            if mine.chosen is None:
                continue
            best = oracle_time(oracle, plan, health, [c.step_time for c in mine.candidates
                               if c.strategy in ("reroute", "migrate")])  # fmt: skip
            name = f"{replicas}x{stages}x{tensor} dead {dead} slow {slow}"
            regrets.append((mine.chosen.step_time / best - 1, name))
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
