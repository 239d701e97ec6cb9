"""Where the state of a worker that joins comes from: cell by cell, from any holders, whatever
their cut.

A joiner gets its units one by one. For every unit it has a list of sources; each of them gives
what it holds of what the sources before it in the list have not given. Where a holder is cut like
the joiner, or not cut at all, that is one source; a joiner of a tensor group that has become
smaller is given its unit by several. Who gives what follows from the next plan and the lists
alone, so both ends of a link work it out on their own, also a joiner that knows no plan before it.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from holdfast.plan.holders import HolderMap
from holdfast.plan.plan import Plan, Stage
from holdfast.plan.units import Box, TensorSpec, box_size, intersect, subtract

Pieces = tuple[tuple[TensorSpec, Box], ...]
"""Parts of tensors, in the order in which their bytes travel."""


class UnitSource(msgspec.Struct, frozen=True):
    """A worker that gives a unit, or a part of it, and where it stands in the stage it has it
    from: tensor rank, tensor degree, shard rank, shard degree.
    """

    name: str
    place: tuple[int, int, int, int] = (0, 1, 0, 1)


Sources = Mapping[int, Sequence[UnitSource]]
"""Per unit of a joiner."""


def needed_pieces(plan: Plan, worker: str) -> dict[int, Pieces]:
    """Per unit of a worker, what it gets with it; a tied tensor comes once."""
    held = HolderMap(plan).slices(worker)
    units = [u for stage, _ in plan.seats[worker] for u in range(stage.first, stage.stop)]
    given: set[str] = set()
    pieces: dict[int, Pieces] = {}
    for unit in units:
        tensors = [tensor for tensor in plan.units[unit].tensors if tensor.name not in given]
        given.update(tensor.name for tensor in tensors)
        pieces[unit] = tuple((t, box) for t in tensors for box in held.get(t.name, ()))
    return pieces


def given_pieces(plan: Plan, joiner: str, sources: Sources) -> dict[str, dict[int, Pieces]]:
    """Per source and unit, what it gives to a joiner of `plan`."""
    given: dict[str, dict[int, Pieces]] = {}
    for unit, pieces in needed_pieces(plan, joiner).items():
        for source, found in _shared_out(pieces, sources[unit]):
            given.setdefault(source, {})[unit] = found
    return given


def _shared_out(pieces: Pieces, sources: Sequence[UnitSource]) -> Iterator[tuple[str, Pieces]]:
    rest = pieces
    for source in sources:
        found = _common(rest, source)
        if found:
            yield source.name, found
            rest = _without(rest, found)


def _common(pieces: Pieces, source: UnitSource) -> Pieces:
    return tuple(
        (tensor, common)
        for tensor, box in pieces
        if (common := intersect(box, tensor.box(*source.place))) is not None
    )


def _without(pieces: Pieces, taken: Pieces) -> Pieces:
    left = pieces
    for tensor, box in taken:
        left = tuple(
            (other, part)
            for other, whole in left
            for part in (subtract(whole, box) if other == tensor else [whole])
        )
    return left


def choose_sources(
    now: Plan, target: Plan, worker: str, load: dict[str, int]
) -> dict[int, tuple[UnitSource, ...]]:
    """As few sources as there may be for every unit, of those the least loaded; `load` counts how
    much each worker gives. Every stage of `now` holds its units whole, so nothing is missing.
    """
    sources: dict[int, tuple[UnitSource, ...]] = {}
    needed = needed_pieces(target, worker)
    for stage, position in target.seats[worker]:
        for unit in range(stage.first, stage.stop):
            able = _whole_holders(now, stage, position, unit)
            if able:
                sources[unit] = (min(able, key=lambda source: load.get(source.name, 0)),)
            else:
                sources[unit] = _cover(_holders(now, unit), needed[unit], load)
            for source in sources[unit]:
                load[source.name] = load.get(source.name, 0) + 1
    return sources


def _whole_holders(now: Plan, stage: Stage, position: int, unit: int) -> list[UnitSource]:
    """Workers that hold all of the unit that a seat holds: cut alike, or not at all."""
    stages = [other for other in now.stages if other.first <= unit < other.stop]
    alike = [_source(other, position) for other in stages if other.axes == stage.axes]
    whole = [_source(other, 0) for other in stages if len(other.workers) == 1]
    return list(dict.fromkeys([*alike, *whole]))


def _holders(now: Plan, unit: int) -> list[UnitSource]:
    return [
        _source(stage, position)
        for stage in now.stages
        if stage.first <= unit < stage.stop
        for position in range(len(stage.workers))
    ]


def _source(stage: Stage, position: int) -> UnitSource:
    ranks = stage.coordinates(position)
    tensor, shard = ranks.get("tensor", 0), ranks.get("shard", 0)
    return UnitSource(stage.workers[position], (tensor, stage.tensor, shard, stage.shard))


def _cover(
    able: list[UnitSource], pieces: Pieces, load: Mapping[str, int]
) -> tuple[UnitSource, ...]:
    """The holder of most that is still missing is next."""
    chosen: list[UnitSource] = []
    rest = pieces
    while rest:
        sizes = {source: _size(_common(rest, source)) for source in able}
        best = max(able, key=lambda source: (sizes[source], -load.get(source.name, 0)))
        chosen.append(best)
        rest = _without(rest, _common(rest, best))
    return tuple(chosen)


def _size(pieces: Pieces) -> int:
    return sum(box_size(box) for _, box in pieces)
