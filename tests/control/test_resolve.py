"""A step is broken off at a random moment, some workers die, and the survivors are resolved.

`OneStep` plays one step of a random plan as the protocol has it: micro-batches are added unit by
unit, exchanges end on every member by itself, then all take part in the agreement, then each
applies. What `resolve` says is carried out on symbols: every addend of every slot must end with
every micro-batch exactly once, and every worker at the same version.
"""

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.control.report import LOSS_ADDEND, Addend, Member, Outcome, Slot, WorkerReport
from holdfast.control.resolve import Mode, Resolution, StateLost, resolve
from holdfast.errors import HoldfastError, InternalError
from holdfast.plan.build import regular_plan
from holdfast.plan.exchanges import plan_exchanges, slot_adders
from holdfast.plan.plan import Plan, Stage, whole_route
from holdfast.plan.units import Split, TensorSpec, Unit
from holdfast.plan.without_workers import without_workers
from support.random_plans import make_units, plans

STEP = 7
OUTCOME = Outcome(STEP, 1, 3.0, 100, 2.5, 1.0, True)
NONE = (-1, -1)


class OneStep:
    """Every worker starts at version STEP and works on step STEP."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.members: dict[Slot, tuple[str, ...]] = {
            (unit, number): exchange.members
            for unit, exchanges in enumerate(plan_exchanges(plan))
            for number, exchange in enumerate(exchanges)
        }
        self.adders = slot_adders(plan)
        self.slots = {w: [s for s, m in self.members.items() if w in m] for w in plan.workers}
        self.todo = {w: self._work(w) for w in plan.workers}
        self.sums: dict[str, dict[Addend, tuple[int, ...]]] = {w: {} for w in plan.workers}
        self.entered: dict[Slot, set[str]] = {slot: set() for slot in self.members}
        self.results: dict[str, set[Slot]] = {w: set() for w in plan.workers}
        self.agreeing: set[str] = set()
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
        found: list[tuple[str, str, Slot]] = []
        for worker in self.plan.workers:
            if self.todo[worker]:
                found.append(("add", worker, NONE))
                continue
            open_slots = [s for s in self.slots[worker] if s not in self.results[worker]]
            for slot in open_slots:
                if worker not in self.entered[slot]:
                    found.append(("enter", worker, slot))
                elif len(self.entered[slot]) == len(self.members[slot]):
                    found.append(("finish", worker, slot))
            if open_slots or worker in self.applied:
                continue
            if worker not in self.agreeing:
                found.append(("agree", worker, NONE))
            elif len(self.agreeing) == len(self.plan.workers):
                found.append(("apply", worker, NONE))
        return found

    def do(self, event: tuple[str, str, Slot]) -> None:
        kind, worker, slot = event
        if kind == "add":
            self._add(worker, *self.todo[worker].pop(0))
        elif kind == "enter":
            self.entered[slot].add(worker)
        elif kind == "finish":
            self.results[worker].add(slot)
            for adder in self.adders[slot]:
                self.sums[worker].pop((*slot, adder), None)
        else:
            {"agree": self.agreeing, "apply": self.applied}[kind].add(worker)

    def _add(self, worker: str, number: int, unit: int) -> None:
        addends = [(*s, unit) for s in self.slots[worker] if unit in self.adders[s]]
        last = unit == len(self.plan.units) - 1
        if last and self._position(worker, unit) == 0:
            addends.append(LOSS_ADDEND)
        for addend in addends:
            sums = self.sums[worker]
            sums[addend] = tuple(sorted((*sums.get(addend, ()), number)))

    def _position(self, worker: str, unit: int) -> int:
        seats = self.plan.seats[worker]
        return next(at for stage, at in seats if stage.first <= unit < stage.stop)

    def report(self, worker: str) -> WorkerReport:
        done = worker in self.applied
        return WorkerReport(
            member=Member(worker, 0),
            round=2,
            epoch=1,
            version=STEP + done,
            base=1,
            sums={} if done else dict(self.sums[worker]),
            results=() if done else tuple(sorted(self.results[worker])),
            outcome=OUTCOME if done else None,
        )


def play(world: OneStep, share: float, seed: int) -> None:
    """`share` of the step, in an order drawn from the seed."""
    source = random.Random(seed)
    seats = sum(len(members) for members in world.members.values())
    total = sum(map(len, world.todo.values())) + 2 * seats + 2 * len(world.plan.workers)
    for _ in range(int(share * total)):
        events = world.events()
        if not events:
            return
        world.do(source.choice(events))


@st.composite
def broken_steps(draw: st.DrawFn) -> tuple[OneStep, list[WorkerReport], Plan | None]:
    """The world, what survivors report, and the plan that is left, if any."""
    world = OneStep(draw(plans))
    share = draw(st.one_of(st.floats(0, 1), st.floats(0.8, 1)))
    play(world, share, draw(st.integers(0, 2**32)))
    dead = draw(st.sets(st.sampled_from(world.plan.workers), max_size=2))
    reports = [world.report(w) for w in world.plan.workers if w not in dead]
    try:
        return world, reports, without_workers(world.plan, dead)[0]
    except HoldfastError:
        return world, reports, None


@settings(max_examples=200)
@given(broken_steps(), st.sampled_from(["exact", "fast"]))
def test_every_part_gets_every_micro_batch_exactly_once(
    case: tuple[OneStep, list[WorkerReport], Plan | None], mode: Mode
) -> None:
    world, reports, plan = case
    if plan is None or not plan.stages or not reports:
        return
    found = resolve(world.plan, plan, reports, base_epoch=1, mode=mode)
    assert isinstance(found, Resolution)
    if any(report.member.name in world.applied for report in reports):
        assert found.version == STEP + 1
        check_roll_forward(world, plan, reports, found)
        return
    assert found.version == STEP
    assert found.outcome is None
    check_completion(world, plan, found, mode)


def check_roll_forward(
    world: OneStep, plan: Plan, reports: list[WorkerReport], found: Resolution
) -> None:
    """A worker applied: all with a role end at that version, and the next step is open."""
    names = [r.member.name for r in reports if r.member.name in plan.seats]
    behind = [name for name in names if name not in world.applied]
    assert sorted(found.behind) == sorted(behind)
    assert found.micro_batches == tuple(range(world.plan.num_micro_batches))
    for name in names:
        share = found.share(name)
        assert share.outcome == (OUTCOME if name in behind else None)
        assert share.keep == share.give == share.done == ()


def check_completion(world: OneStep, plan: Plan, found: Resolution, mode: Mode) -> None:
    """What is kept and what is computed again: each micro-batch once per addend and stage."""
    full = set(range(world.plan.num_micro_batches))
    any_result = bool(found.give or found.done)
    heard: dict[Addend, set[int]] = {}
    shares = {worker: found.share(worker) for worker in plan.seats}
    for slot, members in world.members.items():
        alive = [worker for worker in members if worker in plan.seats]
        able = [worker for worker in alive if slot in world.results[worker]]
        givers = [w for w in alive if slot in shares[w].give]
        if able:
            done = [w for w in alive if slot in shares[w].done]
            assert len(givers) == (0 if len(able) == len(alive) else 1)
            assert done == (alive if len(able) == len(alive) else [])
            assert not any(slot in shares[w].keep for w in alive)
            continue
        for adder in world.adders[slot]:
            addend = (*slot, adder)
            heard[addend] = set()
            for stage in plan.stages:
                inside = [w for w in stage.workers if w in alive]
                if not stage.first <= adder < stage.stop or not inside:
                    continue
                kept = {
                    world.sums[w].get(addend, ()) if slot in shares[w].keep else () for w in inside
                }
                assert len(kept) == 1, "all workers of a stage count the same"
                numbers = set(kept.pop())
                assert heard[addend].isdisjoint(numbers)
                heard[addend] |= numbers
            again = {shares[w].recompute.get(addend, ()) for w in alive}
            assert len(again) == 1
            numbers = set(again.pop())
            assert heard[addend].isdisjoint(numbers)
            heard[addend] |= numbers
    said = [number for share in shares.values() for number in share.losses]
    assert len(said) == len(set(said))
    heard[LOSS_ADDEND] = {*said, *found.recompute.get(LOSS_ADDEND, ())}
    sizes = {frozenset(numbers) for numbers in heard.values()}
    assert len(sizes) <= 1, "all addends hold the same micro-batches"
    if mode == "exact" or any_result:
        assert all(numbers == full for numbers in heard.values())
        assert found.rate_factor == 1.0


def test_agreeing_before_the_buckets_are_complete_makes_roll_forward_impossible() -> None:
    """The counterexample that the order is for: one applied, one never saw its bucket."""
    plan = regular_plan(make_units(2), replicas=2, stages=2, micro_batches=2)
    world = OneStep(plan)
    play(world, 0.5, 1)
    world.applied.add("n0.g0")
    dead = {"n0.g1"}
    reports = [world.report(w) for w in plan.workers if w not in dead]
    with pytest.raises(InternalError, match="ended before they were complete"):
        resolve(plan, without_workers(plan, dead)[0], reports, base_epoch=1)


def _unequal_replicas() -> Plan:
    """The first replica is cut across its tensors, the second between its units, and a tensor is
    tied: losing the first replica changes the numbers of the second one's slots.
    """
    tied = TensorSpec("embed", (4,), Split(0, 4))
    units = tuple(
        Unit(f"block.{n}", (TensorSpec(f"block.{n}.w", (4,), Split(0, 4)), tied)) for n in (0, 1)
    )
    first = (Stage(0, 0, 0, 2, ("n0.g0", "n0.g1"), (("tensor", 2),)),)
    second = (Stage(1, 0, 0, 1, ("n1.g0",)), Stage(1, 1, 1, 2, ("n1.g1",)))
    return Plan(units, (*first, *second), (whole_route(first), whole_route(second)))


def test_a_follower_may_have_begun_its_step_under_an_older_plan() -> None:
    """After a recovery, the first worker to apply the step numbers its slots by the new plan; the
    others are still in the step that was begun under the plan before it.
    """
    before = _unequal_replicas()
    base, _ = without_workers(before, ["n0.g0", "n0.g1"])
    slots = OneStep(before).slots["n1.g1"]
    assert set(OneStep(base).slots["n1.g1"]) - set(slots)
    outcome = msgspec.structs.replace(OUTCOME, epoch=2)
    ahead = WorkerReport(
        member=Member("n1.g0", 0), round=3, epoch=2, version=STEP + 1, base=2, outcome=outcome
    )
    behind = WorkerReport(
        member=Member("n1.g1", 0), round=3, epoch=2, version=STEP, base=1, results=tuple(slots)
    )
    plans = {1: before, 2: base}
    found = resolve(base, base, [ahead, behind], base_epoch=2, plans=plans)
    assert isinstance(found, Resolution)
    assert found.behind == ("n1.g1",)
    assert found.share("n1.g1").outcome == outcome
    partly = msgspec.structs.replace(behind, results=tuple(slots[1:]))
    with pytest.raises(InternalError, match="ended before they were complete"):
        resolve(base, base, [ahead, partly], base_epoch=2, plans=plans)


def test_a_double_count_is_never_let_through() -> None:
    plan = regular_plan(make_units(1), replicas=2, micro_batches=2)
    world = OneStep(plan)
    addend = (0, 0, 0)
    doubled = [
        msgspec.structs.replace(world.report(worker), sums={addend: (0,)})
        for worker in plan.workers
    ]
    with pytest.raises(InternalError, match="both have micro-batch 0"):
        resolve(plan, plan, doubled, base_epoch=1)


def test_the_reason_is_in_words() -> None:
    plan = regular_plan(make_units(2), replicas=2, micro_batches=4)
    world = OneStep(plan)
    world.do(("add", "n0.g0", NONE))
    left, _ = without_workers(plan, ["n0.g1"])
    found = resolve(plan, left, [world.report("n0.g0")], base_epoch=1)
    assert isinstance(found, Resolution)
    assert found.reason == (
        "all are at version 7, step 7: 0 of 2 slots are reduced already, 4 micro-batches run again"
    )
    share = found.share("n0.g0")
    assert share.recompute == {
        (1, 0, 1): (1, 2, 3),
        (0, 0, 0): (0, 1, 2, 3),
        LOSS_ADDEND: (1, 2, 3),
    }
    assert share.keep == ((1, 0),)
    assert share.losses == (0,)


def test_lost_micro_batches_are_left_out_where_that_is_wanted() -> None:
    plan = regular_plan(make_units(2), replicas=2, micro_batches=4)
    world = OneStep(plan)
    world.do(("add", "n0.g0", NONE))
    left, _ = without_workers(plan, ["n0.g1"])
    found = resolve(plan, left, [world.report("n0.g0")], base_epoch=1, mode="fast")
    assert isinstance(found, Resolution)
    assert found.micro_batches == (0, 1)
    assert found.rate_factor == pytest.approx(0.5**0.5)


def test_a_loss_that_died_with_its_worker_is_computed_again() -> None:
    """Every gradient is reduced, but no worker alive knows the losses of the lost worker."""
    plan = regular_plan(make_units(1), replicas=2, micro_batches=2)
    world = OneStep(plan)
    while events := [e for e in world.events() if e[0] not in ("agree", "apply")]:
        world.do(events[0])
    left, _ = without_workers(plan, ["n0.g1"])
    found = resolve(plan, left, [world.report("n0.g0")], base_epoch=1)
    assert isinstance(found, Resolution)
    assert found.done == ((0, 0),)
    assert list(found.recompute) == [LOSS_ADDEND]
    assert len(found.micro_batches) == 1


def test_a_slot_without_a_holder_is_lost() -> None:
    plan = regular_plan(make_units(2), stages=2, micro_batches=2)
    world = OneStep(plan)
    left = msgspec.structs.replace(plan, stages=plan.stages[:1])
    found = resolve(plan, left, [world.report("n0.g0")], base_epoch=1)
    assert isinstance(found, StateLost)
    assert found.slots == ((1, 0),)


def test_sums_of_another_base_do_not_count() -> None:
    """Who began the step under a plan that is void has nothing to bring."""
    plan = regular_plan(make_units(1), replicas=2, micro_batches=2)
    world = OneStep(plan)
    for worker in plan.workers:
        world.do(("add", worker, NONE))
    reports = [world.report(worker) for worker in plan.workers]
    found = resolve(plan, plan, reports, base_epoch=9)
    assert isinstance(found, Resolution)
    assert found.micro_batches == (0, 1)
    assert found.keep == {(0, 0): ()}


def test_a_tied_tensor_gets_its_gradient_from_two_units() -> None:
    plan = regular_plan(make_units(4, tied=True), stages=4, micro_batches=4)
    assert slot_adders(plan)[0, 0] in ((0,), (0, 3))
    assert any(adders == (0, 3) for adders in slot_adders(plan).values())


def test_a_sum_that_the_last_order_dropped_does_not_come_back() -> None:
    """n0.g1 never saw the order that had its micro-batch computed again by n0.g0."""
    plan = regular_plan(make_units(1), replicas=2, micro_batches=2)
    world = OneStep(plan)
    for worker in plan.workers:
        world.do(("add", worker, NONE))
    first, second = (world.report(worker) for worker in plan.workers)
    again = msgspec.structs.replace(first, epoch=2, sums={(0, 0, 0): (0, 1), LOSS_ADDEND: (0, 1)})
    found = resolve(plan, plan, [again, second], base_epoch=1)
    assert isinstance(found, Resolution)
    assert found.keep == {(0, 0): ("n0.g0",)}
    assert found.losses == {"n0.g0": (0, 1)}
    assert found.micro_batches == ()
