"""The story of `holdfast demo`: a step that is healthy, has a slow worker, has lost one."""

from collections.abc import Iterator

import msgspec
from rich.console import Console
from rich.text import Text

from holdfast.cli.plan_show import make_console, print_json
from holdfast.cli.what_if import lose_workers
from holdfast.observe.quantities import format_share, format_time
from holdfast.observe.timeline_terminal import TerminalStyle, chart, legend, look_of
from holdfast.observe.timeline_view import Notes, TimelineView, view_of
from holdfast.plan.build import regular_plan
from holdfast.plan.model_catalog import llama_shape, llama_units
from holdfast.plan.plan import Plan, Schedule
from holdfast.plan.profile import Profile, UnitCost, slow_workers
from holdfast.plan.timeline import Timeline, evaluate

WHO = "r0.s1"
SLOW = 1.5
COST = UnitCost(1.0, 1.0, 1.0)
"""Forward 1, backward 2: the usual ratio."""
EXTRA_IN_FLIGHT = 4
"""A worker that takes over the work of others needs room for a few more micro-batches."""


class Picture(msgspec.Struct, frozen=True):
    title: str
    words: str
    view: TimelineView
    timeline: Timeline


def healthy_plan(replicas: int = 3) -> Plan:
    """24 micro-batches of a 7-billion-parameter model over `replicas` x 4 stages x 2 devices."""
    units = llama_units(llama_shape("llama-7b"))
    return regular_plan(units, replicas=replicas, stages=4, tensor=2, micro_batches=24)


def pictures() -> Iterator[Picture]:
    plan, profile = healthy_plan(), Profile(worker=COST)
    timeline = evaluate(plan, profile)
    yield Picture(
        "1. A healthy step",
        "Three replicas, four pipeline stages each, two devices per stage; every replica does the "
        "same. Dots are bubbles: where workers idle, and where snapshots are free.",
        view_of(timeline, Notes(max_rows=8)),
        timeline,
    )
    yield _slow(plan)
    yield _lost(plan)


def _slow(plan: Plan) -> Picture:
    profile = Profile(worker=COST, slow={WHO: SLOW})
    timeline = evaluate(plan, profile)
    return Picture(
        f"2. One slow worker: {WHO} takes {SLOW:g} times as long",
        "All stages of its replica wait for it, and the other replicas wait at the end, where "
        "gradients are summed.",
        view_of(timeline, Notes(max_rows=8, slow=slow_workers(plan, profile))),
        timeline,
    )


def _lost(plan: Plan) -> Picture:
    smaller, lost = lose_workers(plan, [WHO])
    timeline = evaluate(_with_room(smaller), Profile(worker=COST))
    without = evaluate(_with_room(healthy_plan(2)), Profile(worker=COST)).iteration_time
    return Picture(
        f"3. Rerouted: {WHO} is dead, its micro-batches pass through the other replicas",
        "Micro-batches 0-7 leave their replica for one stage and come back; the step "
        f"trains the same 24. Dropping the whole replica would take {format_time(without)}.",
        view_of(timeline, Notes(max_rows=12, lost=lost)),
        timeline,
    )


def _with_room(plan: Plan) -> Plan:
    return msgspec.structs.replace(plan, schedule=Schedule(extra_in_flight=EXTRA_IN_FLIGHT))


def tell(*, as_json: bool) -> None:
    story = list(pictures())
    if as_json:
        print_json([_numbers(picture) for picture in story])
        return
    console = make_console()
    look = look_of(console, *(picture.view for picture in story))
    longest = max(picture.timeline.iteration_time for picture in story)
    for picture in story:
        # One scale for all pictures: a longer step is longer to the eye, too.
        share = picture.timeline.iteration_time / longest
        own = msgspec.structs.replace(look, width=int(look.width * share))
        _draw(picture, own, story[0].timeline.iteration_time, console)
    console.print("Draw your own: [bold]holdfast plan show --help[/bold]")


def _numbers(picture: Picture) -> dict[str, object]:
    return {
        "title": picture.title,
        "iteration_time": picture.timeline.iteration_time,
        "bubble_fraction": picture.timeline.bubble_fraction,
    }


def _draw(picture: Picture, look: TerminalStyle, first: float, console: Console) -> None:
    timeline = picture.timeline
    console.print(Text(picture.title, style="bold"))
    console.print(picture.words)
    console.print()
    console.print(chart(picture.view, look))
    console.print(legend(picture.view, look))
    slower = timeline.iteration_time / first - 1
    longer = f" (+{100 * slower:.0f} %)" if slower else ""
    console.print(
        f"[bold]iteration time {format_time(timeline.iteration_time)}{longer}[/bold], "
        f"idle {format_share(timeline.bubble_fraction)}, "
        f"24 micro-batches on {len(timeline.layout.plan.workers)} devices"
    )
    console.print()
