"""A step is broken off at a random moment, some workers die, and the survivors are resolved.

`OneStep` plays one step of a random plan as the protocol has it: micro-batches are added unit by
unit, exchanges end on every member by itself, then holders confirm, then all take part in the norm,
then each applies. The result of `resolve` is carried out on symbols: every slot must end with every
micro-batch exactly once, everybody at the same version, with the same update.
"""

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.control.report import Outcome, Report, Slot, StepProgress
from holdfast.control.resolve import Resolution, StateLost, resolve, unit_held
from holdfast.errors import InternalError
from holdfast.plan.build import regular_plan
from holdfast.plan.plan import Plan
from holdfast.plan.reduce import plan_exchanges
from support.random_plans import make_units, plans

STEP = 7


class OneStep:
    """Every worker starts at version STEP - 1 and works on step STEP."""

    def __init__(self, plan: Plan, *, confirm: bool = True) -> None:
        self.plan, self.confirm = plan, confirm
        self.exchanges = {
            (unit, number): exchange
            for unit, exchanges in enumerate(plan_exchanges(plan))
            for number, exchange in enumerate(exchanges)
        }
        self.members = {slot: exchange.members for slot, exchange in self.exchanges.items()}
        self.slots = {w: [s for s, m in self.members.items() if w in m] for w in plan.workers}
        self.todo = {w: self._work(w) for w in plan.workers}
        self.sums: dict[str, dict[Slot, tuple[int, ...]]] = {w: {} for w in plan.workers}
        self.entered: dict[Slot, set[str]] = {slot: set() for slot in self.members}
        self.results: dict[str, set[Slot]] = {w: set() for w in plan.workers}
        self.confirmed: set[str] = set()
        self.norm: set[str] = set()
        self.applied: set[str] = set()

    def _work(self, worker: str) -> list[tuple[int, int]]:
        """(micro-batch, unit) pairs this worker adds, late units first."""
        pairs: list[tuple[int, int]] = []
        for stage, _ in self.plan.seats[worker]:
            for number in self.plan.micro_batches_by_stage[stage.name]:
                (hop,) = [h for h in self.plan.routes[number] if h.stage == stage.name]
                pairs += [(number, unit) for unit in reversed(range(hop.first, hop.stop))]
        return pairs

    def events(self) -> list[tuple[str, str, Slot]]:
        none = (-1, -1)
        found: list[tuple[str, str, Slot]] = []
        for worker in self.plan.workers:
            if self.todo[worker]:
                found.append(("add", worker, none))
                continue
            open_slots = [s for s in self.slots[worker] if s not in self.results[worker]]
            for slot in open_slots:
                if worker not in self.entered[slot]:
                    found.append(("enter", worker, slot))
                elif len(self.entered[slot]) == len(self.members[slot]):
                    found.append(("finish", worker, slot))
            if open_slots or worker in self.applied:
                continue
            if worker not in self.confirmed:
                found.append(("confirm", worker, none))
            elif worker not in self.norm:
                if not self.confirm or self._holders_confirmed(worker):
                    found.append(("norm", worker, none))
            elif len(self.norm) == len(self.plan.workers):
                found.append(("apply", worker, none))
        return found

    def _holders_confirmed(self, worker: str) -> bool:
        return all(m in self.confirmed for s in self.slots[worker] for m in self.members[s])

    def do(self, event: tuple[str, str, Slot]) -> None:
        kind, worker, slot = event
        if kind == "add":
            number, unit = self.todo[worker].pop(0)
            for mine in self.slots[worker]:
                if mine[0] == unit and self._adds(worker, mine):
                    sums = self.sums[worker]
                    sums[mine] = tuple(sorted((*sums.get(mine, ()), number)))
        elif kind == "enter":
            self.entered[slot].add(worker)
        elif kind == "finish":
            self.results[worker].add(slot)
            self.sums[worker].pop(slot, None)
        elif kind == "apply":
            self.applied.add(worker)
        else:
            {"confirm": self.confirmed, "norm": self.norm}[kind].add(worker)

    def _adds(self, worker: str, slot: Slot) -> bool:
        """Tied and shared pieces are added by one per stage: counted once, by the first seat."""
        exchange = self.exchanges[slot]
        if any(worker in piece.silent for piece in exchange.pieces):
            return False
        own = [stage for stage, _ in self.plan.seats[worker] if stage.first <= slot[0] < stage.stop]
        first = next(w for w in own[0].workers if w in exchange.members) if own else ""
        return worker == first

    def report(self, worker: str) -> Report:
        done = worker in self.applied
        version = STEP if done else STEP - 1
        units = [u for stage, _ in self.plan.seats[worker] for u in range(stage.first, stage.stop)]
        progress = StepProgress(STEP, dict(self.sums[worker]), tuple(sorted(self.results[worker])))
        outcomes = (Outcome(STEP, 1, 2.5, True),) if done else ()
        return Report(worker, 0, 1, 1, 0, dict.fromkeys(units, version), (progress,), outcomes)


def play(world: OneStep, share: float, seed: int) -> None:
    """`share` of the step, in an order drawn from the seed."""
    source = random.Random(seed)
    seats = sum(len(members) for members in world.members.values())
    total = sum(map(len, world.todo.values())) + 2 * seats + 3 * len(world.plan.workers)
    for _ in range(int(share * total)):
        events = world.events()
        if not events:
            return
        world.do(source.choice(events))


@st.composite
def broken_steps(draw: st.DrawFn) -> tuple[OneStep, list[Report], set[str]]:
    world = OneStep(draw(plans))
    share = draw(st.one_of(st.floats(0, 1), st.floats(0.8, 1)))
    play(world, share, draw(st.integers(0, 2**32)))
    dead = draw(st.sets(st.sampled_from(world.plan.workers), max_size=2))
    reports = [world.report(w) for w in world.plan.workers if w not in dead]
    return world, reports, dead


@settings(max_examples=150)
@given(broken_steps())
def test_every_slot_gets_every_micro_batch_exactly_once(
    case: tuple[OneStep, list[Report], set[str]],
) -> None:
    world, reports, dead = case
    if not reports:
        return
    found = resolve(world.plan, reports)
    orphans = [slot for slot, members in world.members.items() if dead.issuperset(members)]
    if orphans:
        assert isinstance(found, StateLost)
        assert set(found.slots) == set(orphans)
        return
    assert isinstance(found, Resolution)
    full = tuple(range(world.plan.num_micro_batches))
    completion = found.completion
    if found.version == STEP:
        check_roll_forward(world, reports, found)
        assert completion.recompute == dict.fromkeys(world.members, full)
        return
    assert not any(found.fixes.values())
    for slot in world.members:
        if slot in completion.take:
            assert slot in world.results[completion.take[slot]]
            assert completion.take[slot] not in dead
            continue
        kept = [n for numbers in completion.keep[slot].values() for n in numbers]
        assert sorted((*kept, *completion.recompute[slot])) == list(full)
        assert dead.isdisjoint(completion.keep[slot])


def check_roll_forward(world: OneStep, reports: list[Report], found: Resolution) -> None:
    """Somebody applied: everybody alive ends at that version, by one of three ways."""
    assert found.outcome == Outcome(STEP, 1, 2.5, True)
    alive = {report.worker for report in reports}
    for report in reports:
        fixes = found.fixes.get(report.worker, ())
        if report.worker in world.applied:
            assert fixes == ()
            continue
        assert {fix.slot for fix in fixes} == set(world.slots[report.worker])
        for fix in fixes:
            if fix.kind == "apply":
                assert fix.slot in world.results[report.worker]
            else:
                assert fix.source in alive
                assert fix.source in world.members[fix.slot]


def test_without_confirmation_a_roll_forward_can_be_impossible() -> None:
    """The counterexample that the confirmation is for: one applied, one never saw its bucket."""
    plan = regular_plan(make_units(2), replicas=2, stages=2, micro_batches=2)
    world = OneStep(plan, confirm=False)
    b1 = "n0.g3"
    while True:
        events = [e for e in world.events() if not (e[0] == "finish" and e[1] == b1)]
        ready = [e for e in events if e[0] not in ("norm", "apply")]
        if not ready:
            break
        world.do(ready[0])
    world.norm = set(plan.workers)  # nobody waited for b1
    world.applied.add("n0.g0")
    dead = {"n0.g1"}
    reports = [world.report(w) for w in plan.workers if w not in dead]
    with pytest.raises(InternalError, match="not confirmed before the norm"):
        resolve(plan, reports)


def test_a_double_count_is_never_let_through() -> None:
    plan = regular_plan(make_units(1), replicas=2, micro_batches=2)
    world = OneStep(plan)
    reports = [world.report(worker) for worker in plan.workers]
    slot = next(iter(world.members))
    doubled = [
        msgspec.structs.replace(report, steps=(StepProgress(STEP, {slot: (0,)}),))
        for report in reports
    ]
    with pytest.raises(InternalError, match="counts a micro-batch twice"):
        resolve(plan, doubled)


def test_the_reason_is_in_words() -> None:
    plan = regular_plan(make_units(2), replicas=2, micro_batches=4)
    world = OneStep(plan)
    world.do(("add", "n0.g0", (-1, -1)))
    found = resolve(plan, [world.report("n0.g0")])
    assert isinstance(found, Resolution)
    assert found.reason == (
        "all come to version 6, step 7: 0 slots are reduced already, 4 micro-batches run again"
    )
    assert found.completion.recompute[1, 0] == (1, 2, 3)
    assert found.completion.recompute[0, 0] == (0, 1, 2, 3)


def test_a_tied_slot_is_held_with_either_unit() -> None:
    plan = regular_plan(make_units(4, tied=True), stages=4, micro_batches=4)
    report = Report("n0.g3", 0, 1, 1, 0, {3: 5})
    assert unit_held(report, 0, plan)
    assert not unit_held(report, 1, plan)
