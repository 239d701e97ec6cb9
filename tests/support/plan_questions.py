"""Questions to the planner, and answers, for tests of what becomes of them."""

from collections.abc import Mapping, Sequence

from holdfast.control.plan_question import ExpectedReturn, PlanAnswer, PlanOption, PlanQuestion
from holdfast.plan.build import regular_plan
from holdfast.plan.model_catalog import llama_units, model_shape
from holdfast.plan.plan import Plan
from holdfast.plan.text import format_plan
from holdfast.plan.without_workers import without_workers
from holdfast.planner.health import seen_from

UNITS = llama_units(model_shape("llama-tiny"), 64)


def home_plan(
    replicas: int = 2, stages: int = 1, tensor: int = 2, micro_batches: int = 4, per_node: int = 8
) -> Plan:
    return regular_plan(
        UNITS,
        replicas=replicas,
        stages=stages,
        tensor=tensor,
        micro_batches=micro_batches,
        devices_per_node=per_node,
    )


def make_question(
    home: Plan,
    dead: Sequence[str] = (),
    slow: Mapping[str, float] | None = None,
    returns: Mapping[str, float] | None = None,
    now: Plan | None = None,
    **fields: object,
) -> PlanQuestion:
    """After the loss of some workers: the stages that are left are in force."""
    left = now if now is not None else without_workers(home, dead)[0]
    values: dict[str, object] = {
        "number": 1,
        "epoch": 2,
        "reason": "a test",
        "pace_s": 0.1,
        "horizon_s": 600.0,
        "prepare_s": 1.0,
        "stall_s": 0.2,
    }
    return PlanQuestion(
        now=format_plan(left),
        home=format_plan(home),
        available=tuple(sorted(w for w in home.workers if w not in dead)),
        health=seen_from(home, home.workers, dead, dict(slow or {})),
        paced=format_plan(home),
        returns=tuple(ExpectedReturn(w, s) for w, s in (returns or {}).items()),
        **{**values, **fields},
    )


def make_answer(question: PlanQuestion, plan: Plan, **fields: object) -> PlanAnswer:
    """Of steps half as long as now, unless told."""
    step_s = fields.pop("step_s", 0.1)
    copies = fields.pop("copies", 1)
    option = PlanOption(
        strategy="shrink", reason="a test", step_s=step_s, switch_s=1.0, copies=copies
    )
    values: dict[str, object] = {"now_step_s": 0.2, "now_copies": 1, "rounds": 1}
    return PlanAnswer(
        number=question.number, plan=format_plan(plan), chosen=option, **{**values, **fields}
    )
