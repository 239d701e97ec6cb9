"""A regular part of a plan: one chain of stages, dealt out to its lanes in turn."""

import msgspec

from holdfast.plan.lanes import LaneLayout, LanePart


class Chain(msgspec.Struct, frozen=True):
    """A part in which every micro-batch passes the same stages: `virtual` rounds over `lanes`."""

    lanes: tuple[int, ...]
    stages: tuple[int, ...]
    micro_batches: tuple[int, ...]

    @property
    def virtual(self) -> int:
        return len(self.stages) // len(self.lanes)

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages of the lane at this place in the chain."""
        return self.stages[rank :: len(self.lanes)]


def as_chain(layout: LaneLayout, part: LanePart) -> Chain | None:
    """The part as a chain, or None where its routes or lanes are irregular."""
    if not part.micro_batches:
        return None
    route = layout.routes[part.micro_batches[0]]
    if any(layout.routes[number] != route for number in part.micro_batches):
        return None
    rows = [[layout.lanes_of(stage, n) for stage in route] for n in _different(layout, part)]
    if any(row != rows[0] for row in rows) or any(len(lanes) != 1 for lanes in rows[0]):
        return None
    lanes = [found[0] for found in rows[0]]
    depth = len(dict.fromkeys(lanes))
    if any(lane != lanes[i % depth] for i, lane in enumerate(lanes)) or len(lanes) % depth:
        return None
    return Chain(tuple(lanes[:depth]), route, part.micro_batches)


def _different(layout: LaneLayout, part: LanePart) -> tuple[int, ...]:
    """Micro-batches that may be on different lanes: without a shard axis one stands for all."""
    return part.micro_batches if layout.row_lanes else part.micro_batches[:1]
