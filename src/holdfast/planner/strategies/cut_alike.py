"""Every replica cut at the same units, by the weakest team of every stage.

A healthy replica gains nothing from bounds of its own while it waits for a weak one, and stages
with the same units wait less for each other's reductions.
"""

from collections.abc import Iterator

import msgspec

from holdfast.planner.search_view import Proposal, SearchView
from holdfast.planner.strategies.repair import shrink_in_place


def cut_alike(view: SearchView) -> Iterator[Proposal]:
    """Hit teams go on with the workers that make them fastest; one split of the units for all."""
    if not view.touched:
        return
    for kind in view.schedules:
        pipes = [
            shrink_in_place(view, pipe, kind, []) if n in view.touched else pipe
            for n, pipe in enumerate(view.roster.pipes)
        ]
        made = [pipe for pipe in pipes if pipe is not None]
        if len(made) < len(pipes) or len({pipe.depth for pipe in made}) > 1:
            return
        weakest = [
            min((pipe.teams[k] for pipe in made), key=view.rate) for k in range(made[0].depth)
        ]
        kinds = [(team.tensor, team.shard, team.slow) for team in weakest]
        bounds = view.cost.split(kinds, kind, view.near)
        if bounds is not None:
            cut = [msgspec.structs.replace(pipe, bounds=bounds) for pipe in made]
            reason = "one split of the units for all replicas, by the weakest team of every stage"
            yield Proposal("cut alike", reason, view.shared(cut, kind))
