"""A first pass whose results are not used.

The first pass of a process takes longer than the others: kernels are loaded and chosen, memory is
asked for, caches are made, units are compiled. A joiner goes through it before it is fed, while the
others train, so that they do not wait for it in the first step with it.
"""

from holdfast.engine.boundary import Boundary, PlanBoundaries, parts
from holdfast.engine.compute import Computation
from holdfast.engine.data import DataSource
from holdfast.engine.measure import Stopwatch
from holdfast.engine.state import TensorState
from holdfast.engine.tensor_parallel import LoneMember, TensorGroup
from holdfast.plan.plan import Hop, Plan


class _NotCounted:
    """(Adding) What is added is cleared again."""

    def begin(self, unit: int) -> None:
        pass

    def end(self, unit: int) -> None:
        pass


def warm_up(
    plan: Plan,
    state: TensorState,
    data: DataSource,
    boundaries: PlanBoundaries,
    *,
    compiling: bool = False,
) -> None:
    """One micro-batch forward and backward through every stage of a worker. Gradients are cleared
    again; parameters stay as they are, whatever they are. `compiling`: units are compiled.
    """
    groups: dict[str, TensorGroup] = {
        stage.name: LoneMember(stage.coordinates(position).get("tensor", 0), stage.tensor)
        for stage, position in plan.seats[state.worker]
    }
    example = next(iter(state.slices.values())).parameter
    for tensor in state.sharded.values():
        tensor.allocate()
        tensor.parameter.data.zero_()
    computation = Computation(
        state.units,
        groups,
        len(plan.units),
        recompute=plan.schedule.recompute,
        seed=0,
        stopwatch=Stopwatch(example.device),
        compiled=compiling,
        compiling=compiling,
    )
    for micro_batch, hop in _first_hops(plan, groups):
        batch = data.micro_batch(0, micro_batch).on(example.device)
        where = (hop.stage, micro_batch, data.shape(0, micro_batch), example.device)
        entry = batch.tokens if hop.first == 0 else _zeros(boundaries.expect("F", *where))
        computation.forward(hop, 0, micro_batch, entry, batch)
        if plan.schedule.recompute:
            computation.recompute(hop.stage, micro_batch)
        is_last = hop.stop == len(plan.units)
        grad = None if is_last else _zeros(boundaries.expect("B", *where))
        computation.backward(hop.stage, micro_batch, grad, _NotCounted())
    state.clear_gradients()
    for tensor in state.sharded.values():
        tensor.drop()


def _zeros(room: Boundary) -> Boundary:
    for part in parts(room):
        part.zero_()
    return room


def _first_hops(plan: Plan, stages: dict[str, TensorGroup]) -> list[tuple[int, Hop]]:
    """Per stage, the first micro-batch that passes it, and how."""
    found: dict[str, tuple[int, Hop]] = {}
    for number, route in enumerate(plan.routes):
        for hop in route:
            if hop.stage in stages:
                found.setdefault(hop.stage, (number, hop))
    return list(found.values())
