"""What of a plan is gathered and scattered on one worker, and over which groups."""

from collections import Counter
from collections.abc import Iterator, Sequence

from holdfast.engine.groups import LiveGroup
from holdfast.engine.mesh import Mesh
from holdfast.engine.sharding import Gathers, Scatter, ShardedTensor
from holdfast.engine.state import TensorState
from holdfast.plan.actions import Action
from holdfast.plan.plan import Stage


def plan_gathers(state: TensorState, mesh: Mesh, actions: Sequence[Action]) -> Gathers | None:
    if not state.sharded:
        return None
    units: dict[int, tuple[list[ShardedTensor], LiveGroup]] = {}
    for stage, position in _sharded_seats(state):
        for number in range(stage.first, stage.stop):
            tensors = [state.sharded[spec.name] for spec in state.plan.units[number].tensors]
            if tensors:
                units[number] = (tensors, mesh.shard_group(stage, position))
    asked = Counter(action.number for action in actions if action.kind == "UNSHARD")
    parts = {name: state.slices[name].parameter.detach() for name in state.slices}
    return Gathers(units, parts, by_pass=[unit for unit, count in asked.items() if count > 1])


def plan_scatters(state: TensorState, mesh: Mesh) -> dict[int, Scatter]:
    """By unit, for what a shard group holds in parts of its bucket."""
    groups = {
        spec.name: mesh.scatter_group(stage, position)
        for stage, position in _sharded_seats(state)
        for unit in state.plan.units[stage.first : stage.stop]
        for spec in unit.tensors
    }
    found: dict[int, Scatter] = {}
    for unit, bucket in state.buckets.items():
        if bucket.sharded:
            first = next(iter(bucket.sharded))
            tensors = list(bucket.sharded.values())
            found[unit] = Scatter(tensors, groups[first], bucket.slices)
    return found


def _sharded_seats(state: TensorState) -> Iterator[tuple[Stage, int]]:
    for stage, position in state.plan.seats.get(state.worker, ()):
        if stage.shard > 1:
            yield stage, position
