import msgspec
from hypothesis import given, settings

from holdfast.plan.action_lists import lines_of, lower, reduction_order
from holdfast.plan.build import regular_plan
from holdfast.plan.check import check_plan
from holdfast.plan.plan import Plan, Schedule, Stage, whole_route
from holdfast.plan.timeline import evaluate
from support.random_plans import make_units, plans


def lines(plan: Plan) -> dict[str, str]:
    layout, lists = lower(plan)
    return dict(lines_of(layout, lists))


def test_a_two_stage_pipeline_written_out() -> None:
    plan = regular_plan(make_units(2), stages=2, micro_batches=2)
    assert lines(plan) == {
        "n0.g0": "F0 SF0>r0.s1 F1 SF1>r0.s1 RB0<r0.s1 B0 RB1<r0.s1 B1 REDUCE0 AGREE STEP",
        "n0.g1": "RF0<r0.s0 F0 RF1<r0.s0 B0 SB0>r0.s0 F1 B1 SB1>r0.s0 REDUCE1 AGREE STEP",
    }


def test_recompute_and_sharding_have_their_place() -> None:
    plan = regular_plan(
        make_units(1), shard=2, micro_batches=2, schedule=Schedule("1f1b", recompute=True)
    )
    assert lines(plan)["n0.g1"] == "UNSHARD0 F1 R1 B1 RESHARD0 REDUCE0 AGREE STEP"


def test_gathered_units_are_dropped_after_every_pass_where_shard_ranks_are_alike() -> None:
    for micro_batches, expected in (
        (4, "UNSHARD0 F1 RESHARD0 UNSHARD0 B1 RESHARD0 UNSHARD0 F3 RESHARD0 UNSHARD0 B3 RESHARD0"),
        (3, "UNSHARD0 F1 B1 RESHARD0"),
    ):
        schedule = Schedule("1f1b", reshard="after_forward")
        plan = regular_plan(make_units(1), shard=2, micro_batches=micro_batches, schedule=schedule)
        assert lines(plan)["n0.g1"] == f"{expected} REDUCE0 AGREE STEP"


def test_stages_on_the_same_workers_send_nothing() -> None:
    plan = regular_plan(make_units(2), stages=1, virtual=2, micro_batches=2)
    assert "S" not in lines(plan)["n0.g0"].replace("STEP", "").replace(".s", "")


@settings(max_examples=80)
@given(plans)
def test_messages_stand_between_what_makes_and_what_needs_them(plan: Plan) -> None:
    _, lists = lower(plan)
    for actions in lists:
        place = {(a.kind, a.number, a.stage): i for i, a in enumerate(actions)}
        backward = "I" if plan.schedule.kind == "zero-bubble" else "B"
        for (kind, number, stage), at in place.items():
            if kind == "SF":
                assert place["F", number, stage] < at
            elif kind == "SB":
                assert place[backward, number, stage] < at
            elif kind == "RF":
                assert at < place["F", number, stage]
            elif kind == "RB":
                assert at < place[backward, number, stage]
            elif kind == "REDUCE":
                added = [i for (k, _, s), i in place.items() if k in "BW" and s == stage]
                assert max(added, default=-1) < at


def test_late_units_are_reduced_first() -> None:
    plan = regular_plan(make_units(4), replicas=2, stages=2, micro_batches=4)
    order = [unit for unit, _ in reduction_order(evaluate(plan))]
    assert order == [3, 2, 1, 0]


def test_hand_written_lines_are_taken_as_they_are() -> None:
    plan = regular_plan(make_units(1), micro_batches=1)
    written = Schedule("explicit", orders=(("n0.g0", "F0 R0 B0 REDUCE0 AGREE STEP"),))
    changed = msgspec.structs.replace(plan, schedule=written)
    assert lines(changed) == {"n0.g0": "F0 R0 B0 REDUCE0 AGREE STEP"}


def test_a_lane_with_both_ends_of_a_tied_tensor_reduces_it_once() -> None:
    units = make_units(3, tied=True)
    stages = (
        Stage(0, 0, 0, 1, ("n0.g0",)),
        Stage(0, 1, 1, 2, ("n0.g1",)),
        Stage(0, 2, 2, 3, ("n0.g0",)),
        Stage(1, 0, 0, 1, ("n0.g2",)),
    )
    plan = Plan(units, stages, (whole_route(stages[:3]),) * 2)
    check_plan(plan)
    assert lines(plan)["n0.g0"].count("REDUCE0") == 1
