"""All workers stay: carry on, or move work away from slow ones, or change their places."""

from collections.abc import Iterator

from holdfast.planner.pipelines import Pipe, Sketch
from holdfast.planner.search_view import Proposal, SearchView
from holdfast.planner.trading import traded


def carry_on(view: SearchView) -> Iterator[Proposal]:
    """The plan as it is."""
    if view.health.gone & frozenset(view.plan.workers):
        yield Proposal("carry on", "nothing changes", refusal="a worker of the plan is dead")
    elif view.whole and view.is_sketch:
        sketch = Sketch(view.roster.pipes, view.roster.counts, view.plan.schedule.kind)
        yield Proposal("carry on", "nothing changes", sketch)
    else:
        yield Proposal("carry on", "nothing changes", plan=view.plan)


def move_micro_batches(view: SearchView) -> Iterator[Proposal]:
    """Slow pipelines get fewer micro-batches. No state moves."""
    reason = "fewer micro-batches where workers are slow; no state moves"
    if not view.whole or not view.roster.pipes:
        return
    for kind in view.schedules:
        yield Proposal("micro-batches", reason, view.shared(view.roster.pipes, kind))


def move_units(view: SearchView) -> Iterator[Proposal]:
    """Slow stages get fewer units, slow pipelines fewer micro-batches."""
    reason = "fewer units on slow stages, then fewer micro-batches on slow pipelines"
    if not view.whole or not view.slowed:
        return
    for kind in view.schedules:
        new: dict[int, Pipe | None] = {
            n: view.resplit(view.roster.pipes[n], kind) for n in view.slowed
        }
        if all(new.values()):
            yield Proposal("units", reason, view.shared(view.replaced(new), kind))


def trade_places(view: SearchView) -> Iterator[Proposal]:
    """Workers sit where no slow link lies between neighbours."""
    reason = "workers trade places, so that slow links have little to carry"
    if not view.whole or not view.roster.pipes or not view.cost.profile.links:
        return
    for kind in view.schedules:
        sketch = view.shared(view.roster.pipes, kind)
        if (found := traded(view, sketch)) is not sketch:
            yield Proposal("trade places", reason, found)
