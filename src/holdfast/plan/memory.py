"""Memory: what a plan needs on every device, and in host memory for snapshots."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import msgspec

from holdfast.plan.holders import HolderMap, SeatKey, seat_key
from holdfast.plan.lanes import LaneLayout
from holdfast.plan.plan import Hop, Plan, Schedule, Stage
from holdfast.plan.timeline import Program, Timeline
from holdfast.plan.units import box_size
from holdfast.plan.workers import node_of


class MemoryUse(msgspec.Struct, frozen=True):
    """Bytes on one device at the worst moment of a step."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer + self.activations


def device_memory(timeline: Timeline) -> dict[str, MemoryUse]:
    layout = timeline.layout
    plan, state = layout.plan, layout.plan.state_bytes
    counts = HolderMap(plan).num_parameters
    known: dict[SeatKey, tuple[int, int]] = {}
    use: dict[str, MemoryUse] = {}
    for lane, workers in enumerate(layout.lanes):
        activations = peak_activation_bytes(timeline.program, lane)
        for worker in workers:
            held = counts[worker]
            sharded = [seat for seat in plan.seats[worker] if seat[0].shard > 1]
            found = [_gathered(plan, stage, position, known) for stage, position in sharded]
            use[worker] = MemoryUse(
                parameters=(held + sum(gathered for gathered, _ in found)) * state.parameter,
                gradients=(held + sum(summed for _, summed in found)) * state.gradient,
                optimizer=held * state.optimizer,
                activations=activations,
            )
    return {worker: use[worker] for worker in plan.workers}


def _gathered(
    plan: Plan, stage: Stage, position: int, known: dict[SeatKey, tuple[int, int]]
) -> tuple[int, int]:
    """Elements of a stage with a shard axis that are gathered at a time, and those of its local
    sums.
    """
    key = seat_key(stage, position)
    if key not in known:
        rank = stage.coordinates(position).get("tensor", 0)
        sizes = [
            sum(box_size(tensor.box(rank, stage.tensor)) for tensor in unit.tensors)
            for unit in plan.units[stage.first : stage.stop]
        ]
        tensors = {t.name: t for unit in plan.units[stage.first : stage.stop] for t in unit.tensors}
        whole = sum(box_size(tensor.box(rank, stage.tensor)) for tensor in tensors.values())
        is_even = len(plan.micro_batches_by_stage[stage.name]) % stage.shard == 0
        known[key] = (gathered_at_once(sizes, whole, plan.schedule, is_even=is_even), whole)
    return known[key]


def gathered_at_once(
    sizes: Sequence[int], whole: int, schedule: Schedule, *, is_even: bool = True
) -> int:
    """Of units of these sizes: the whole of them, or one and the next where they are dropped after
    every pass, which takes shard ranks that all do the same.
    """
    if schedule.reshard == "after_backward" or not is_even:
        return whole
    return max((sum(pair) for pair in pairwise(sizes)), default=whole)


def peak_in_flight(timeline: Timeline, lane: int) -> int:
    """The most (stage, micro-batch) pairs a lane holds at once between forward and backward."""
    return int(max(_held(timeline.program, lane, lambda stage, micro_batch: 1), default=0))


def peak_activation_bytes(program: Program, lane: int) -> int:
    """Activations at the worst moment. With recomputation only stage inputs are kept, plus one
    full set.
    """
    layout = program.layout
    sizes: dict[tuple[int, Hop], tuple[int, int]] = {}

    def size(stage: int, micro_batch: int) -> int:
        hop = layout.hop(stage, micro_batch)
        if (stage, hop) not in sizes:
            sizes[stage, hop] = _activation_bytes(layout, stage, hop)
        return sizes[stage, hop][0]

    peak = max(_held(program, lane, size), default=0)
    again = max((full for _, full in sizes.values()), default=0)
    return int(peak + (again if layout.plan.schedule.recompute else 0))


def _activation_bytes(layout: LaneLayout, number: int, hop: Hop) -> tuple[int, int]:
    """(kept from forward to backward, needed while the backward pass runs) per worker."""
    plan, stage = layout.plan, layout.plan.stages[number]
    full = sum(unit.activation_bytes for unit in plan.units[hop.first : hop.stop])
    per_worker = -(-full // stage.tensor)
    if not plan.schedule.recompute:
        return per_worker, per_worker
    boundary = plan.units[hop.first - 1].boundary_bytes if hop.first else 0
    return boundary, per_worker


def _held(program: Program, lane: int, size: Callable[[int, int], int]) -> Iterator[int]:
    """The running total of what a lane holds, after every computation."""
    held = 0
    for number in program.lanes[lane]:
        kind, stage, micro_batch = program.ops[number]
        if kind == "F":
            held += size(stage, micro_batch)
        elif kind != "I":  # the weight part still needs the activations
            held -= size(stage, micro_batch)
        yield held


def host_memory(plan: Plan) -> dict[str, int]:
    """Bytes of host memory every node needs for two snapshot versions with parity.

    A slice is saved once over its n holders, a share each. With two or more holders parity adds
    1/(n-1) of the share; a slice with one holder is copied to a peer instead, counted where it
    is held.
    """
    holders = HolderMap(plan)
    kept = plan.state_bytes.kept
    shares: dict[str, float] = dict.fromkeys(plan.workers, 0.0)
    known: dict[tuple[object, ...], tuple[tuple[str, float], ...]] = {}
    for name, tensor in holders.tensors.items():
        key = (tensor.shape, tensor.split, _ranges(plan, holders.units_of_tensor[name]))
        if key not in known:
            known[key] = tuple(_share_of(holders, name))
        for worker, elements in known[key]:
            shares[worker] += elements * kept
    nodes: dict[str, float] = {}
    for worker, share in shares.items():
        nodes[node_of(worker)] = nodes.get(node_of(worker), 0.0) + 2 * share
    return {node: int(size + 0.5) for node, size in nodes.items()}


def _ranges(plan: Plan, units: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(
        stage.name for stage in plan.stages if any(stage.first <= u < stage.stop for u in units)
    )


def _share_of(holders: HolderMap, tensor: str) -> Iterator[tuple[str, float]]:
    for cell in holders.cells(tensor):
        n = len(cell.holders)
        redundancy = 1 + 1 / (n - 1) if n > 1 else 2.0
        for worker in cell.holders:
            yield worker, box_size(cell.box) / n * redundancy
