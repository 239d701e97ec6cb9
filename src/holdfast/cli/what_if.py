"""Small changes of a plan made by hand, to see what they do: other routes, workers that are gone.

This is a calculator for people; it does not choose between strategies.
"""

from collections.abc import Sequence

import msgspec

from holdfast.errors import HoldfastError
from holdfast.plan.plan import Plan, Route, Stage, whole_route
from holdfast.plan.text_routes import parse_route
from holdfast.plan.without_workers import without_workers
from holdfast.plan.workers import parse_range


def change_routes(plan: Plan, texts: Sequence[str]) -> Plan:
    """`3=r0.s0 r1.s1 ...` or `3-5=r1`: these micro-batches pass these stages."""
    routes = list(plan.routes)
    for text in texts:
        numbers, equals, path = text.partition("=")
        if not equals or not path.strip():
            raise HoldfastError(
                f"--route {text!r}: expected micro-batches and stages, like 3-5=r0.s0 r1.s1"
            )
        low, high = parse_range(numbers)
        if high >= len(routes):
            raise HoldfastError(
                f"--route {text!r} names micro-batch {high}, the step has 0 to {len(routes) - 1}"
            )
        routes[low : high + 1] = [_route(plan, path.strip())] * (high + 1 - low)
    return msgspec.structs.replace(plan, routes=tuple(routes))


def _route(plan: Plan, text: str) -> Route:
    replica = text[1:]
    if text.startswith("r") and replica.isdigit():
        if int(replica) not in plan.replicas:
            raise HoldfastError(
                f"--route: the plan has no replica {text}, it has {_replicas(plan)}"
            )
        return whole_route(plan.replicas[int(replica)])
    return parse_route(text, plan.stage_by_name)


def _replicas(plan: Plan) -> str:
    return " ".join(f"r{replica}" for replica in list(plan.replicas)[:8])


def lose_workers(plan: Plan, patterns: Sequence[str]) -> tuple[Plan, tuple[Stage, ...]]:
    """The plan without the stages these workers take part in, and those stages."""
    gone = {worker for pattern in patterns for worker in plan.select(pattern)}
    return without_workers(plan, gone)
