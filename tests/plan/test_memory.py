import msgspec
import pytest
from hypothesis import given, settings

from holdfast.plan.build import regular_plan
from holdfast.plan.holders import HolderMap
from holdfast.plan.memory import device_memory, host_memory, peak_in_flight
from holdfast.plan.plan import Plan, Schedule
from holdfast.plan.timeline import evaluate
from holdfast.plan.units import TensorSpec, Unit, box_size
from support.random_plans import make_units, plans


def test_1f1b_keeps_what_it_should_in_flight() -> None:
    for stages in range(1, 6):
        for micro_batches in range(1, 9):
            plan = regular_plan(make_units(stages), stages=stages, micro_batches=micro_batches)
            timeline = evaluate(plan)
            peaks = [peak_in_flight(timeline, lane) for lane in range(stages)]
            assert peaks == [min(stages - s, micro_batches) for s in range(stages)]


def test_gpipe_keeps_everything() -> None:
    timeline = evaluate(regular_plan(make_units(2), stages=2, micro_batches=7, schedule="gpipe"))
    assert [peak_in_flight(timeline, lane) for lane in (0, 1)] == [7, 7]


@settings(max_examples=60)
@given(plans)
def test_state_is_what_the_holder_map_says(plan: Plan) -> None:
    holders = HolderMap(plan)
    use = device_memory(evaluate(plan))
    assert tuple(use) == plan.workers
    for worker in plan.workers:
        held = sum(box_size(box) for boxes in holders.slices(worker).values() for box in boxes)
        assert use[worker].optimizer == 12 * held
        assert use[worker].parameters >= 2 * held
        assert use[worker].total > 0


def test_recomputation_saves_activations() -> None:
    units = [Unit(f"u.{i}", (), activation_bytes=1000, boundary_bytes=10) for i in range(4)]
    plain = regular_plan(units, stages=2, micro_batches=8)
    again = msgspec.structs.replace(plain, schedule=Schedule("1f1b", recompute=True))
    kept = [device_memory(evaluate(plan))["n0.g1"].activations for plan in (plain, again)]
    assert kept == [2000, 10 + 2000]
    kept = [device_memory(evaluate(plan))["n0.g0"].activations for plan in (plain, again)]
    assert kept == [4000, 0 + 2000]


def test_sharding_divides_state_and_gathers_parameters() -> None:
    unit = Unit("u", (TensorSpec("u.w", (100, 10)),))
    use = device_memory(evaluate(regular_plan([unit], shard=4, micro_batches=1)))["n0.g0"]
    assert (use.parameters, use.gradients, use.optimizer) == (2 * 1250, 4 * 1250, 12 * 250)


@pytest.mark.parametrize(("micro_batches", "gathered"), [(4, 80), (3, 90)])
def test_units_that_are_dropped_after_every_pass(micro_batches: int, gathered: int) -> None:
    """One and the next are there at a time; all of them where shard ranks do not do the same."""
    units = [
        Unit(f"u{n}", (TensorSpec(f"u{n}.w", (rows,)),)) for n, rows in enumerate((10, 30, 50))
    ]
    schedule = Schedule(reshard="after_forward")
    plan = regular_plan(units, shard=2, micro_batches=micro_batches, schedule=schedule)
    use = device_memory(evaluate(plan))["n0.g0"]
    assert (use.parameters, use.gradients) == (2 * (45 + gathered), 4 * (45 + 90))


@pytest.mark.parametrize(("replicas", "expected"), [(1, 2 * 2.0), (2, 2 * 2.0), (5, 2 * 1.25)])
def test_host_memory_counts_versions_and_parity(replicas: int, expected: float) -> None:
    unit = Unit("u", (TensorSpec("u.w", (1000,)),))
    plan = regular_plan([unit], replicas=replicas, micro_batches=5, devices_per_node=1)
    assert sum(host_memory(plan).values()) == pytest.approx(expected * 14000)
