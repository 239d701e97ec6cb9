"""Small timelines for tests of what is shown: forward 1, backward 2."""

import msgspec

from holdfast.cli.what_if import lose_workers
from holdfast.plan.build import regular_plan
from holdfast.plan.model_catalog import llama_shape, llama_units
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Profile, UnitCost
from holdfast.plan.timeline import Timeline, evaluate

COST = UnitCost(1.0, 1.0, 1.0)


def small_plan(**options) -> Plan:
    """2 replicas x 4 stages of a tiny model, 16 micro-batches, unless told otherwise."""
    degrees = {"replicas": 2, "stages": 4, "micro_batches": 16} | options
    return regular_plan(llama_units(llama_shape("llama-small"), 128), **degrees)


def small_timeline(plan: Plan | None = None, **profile) -> Timeline:
    return evaluate(plan or small_plan(), Profile(worker=COST, **profile))


def rerouted_plan() -> Plan:
    """r0.s1 is gone; its micro-batches pass r1.s1."""
    plan, _ = lose_workers(small_plan(), ["r0.s1"])
    return plan


def with_schedule(plan: Plan, **fields) -> Plan:
    return msgspec.structs.replace(plan, schedule=msgspec.structs.replace(plan.schedule, **fields))
