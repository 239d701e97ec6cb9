"""From an order of computations to everything a worker does: the full action list.

Messages, reductions and the end of the step are put between the computations by one rule: all
workers list the events they share in one global order. That order is the timeline's: a message
stands where the computation that makes it ends, a reduction where the last holder is ready. So a
worker that is ahead of time never has to wait for an event that stands, for its partner, behind
one the partner is still waiting for: under rendezvous, without tags and without buffers, the
lists cannot block each other.
"""

from holdfast.plan.actions import COMPUTE, Action, explicit_lines, format_line
from holdfast.plan.holders import HolderMap
from holdfast.plan.lanes import LaneLayout
from holdfast.plan.plan import Plan, Stage
from holdfast.plan.profile import Profile
from holdfast.plan.timeline import Timeline, evaluate

_USES = ("F", "R", "B", "I", "W")

_Placed = tuple[float, int, int, Action]
"""Time, place in the sequence, a last tie-break, the action."""


def lower(plan: Plan, profile: Profile = Profile()) -> tuple[LaneLayout, list[list[Action]]]:
    """The action list of every lane."""
    timeline = evaluate(plan, profile)
    return timeline.layout, lower_timeline(timeline)


def lower_timeline(timeline: Timeline) -> list[list[Action]]:
    layout = timeline.layout
    if layout.plan.schedule.is_explicit:
        lines = explicit_lines(layout)
        if any(action.kind not in COMPUTE for line in lines for action in line):
            return lines  # written out in full by hand: taken as it is
    placed: list[list[_Placed]] = [[] for _ in layout.lanes]
    _place_computations(timeline, placed)
    _place_messages(timeline, placed)
    _place_reductions(timeline, placed)
    lists: list[list[Action]] = []
    for entries in placed:
        actions = [entry[3] for entry in sorted(entries, key=lambda entry: entry[:3])]
        lists.append([*actions, Action("AGREE"), Action("STEP")])
    return _with_sharding(layout, lists)


def lines_of(layout: LaneLayout, lists: list[list[Action]]) -> list[tuple[str, str]]:
    """(worker, line) for every worker."""
    lines: list[tuple[str, str]] = []
    for lane, workers in enumerate(layout.lanes):
        stages = layout.lane_stages[lane]
        only = layout.plan.stages[stages[0]].name if len(stages) == 1 else ""
        lines += [(worker, format_line(lists[lane], only)) for worker in workers]
    return lines


def _place_computations(timeline: Timeline, placed: list[list[_Placed]]) -> None:
    program, stages = timeline.program, timeline.layout.plan.stages
    recompute = timeline.layout.plan.schedule.recompute
    for place, number in enumerate(timeline.sequence):
        kind, stage, micro_batch = program.ops[number]
        name, start = stages[stage].name, timeline.start[number]
        for lane in program.op_lanes[number]:
            if recompute and kind in ("B", "I"):
                placed[lane].append((start, 2 * place, 0, Action("R", micro_batch, name)))
            placed[lane].append((start, 2 * place, 1, Action(kind, micro_batch, name)))


def _place_messages(timeline: Timeline, placed: list[list[_Placed]]) -> None:
    program, layout = timeline.program, timeline.layout
    stages = layout.plan.stages
    for place, number in enumerate(timeline.sequence):
        if program.channel[number] < 0:
            continue
        source, target = program.channels[program.channel[number]]
        kind, _, micro_batch = program.ops[number]
        if layout.plan.stay_local(stages[source], stages[target], micro_batch):
            continue
        what = "F" if kind == "F" else "B"
        send = Action("S" + what, micro_batch, stages[source].name, stages[target].name)
        receive = Action("R" + what, micro_batch, stages[target].name, stages[source].name)
        at = (timeline.end[number], 2 * place + 1)
        for lane in layout.lanes_of(source, micro_batch):
            placed[lane].append((*at, 0, send))
        for lane in layout.lanes_of(target, micro_batch):
            placed[lane].append((*at, 1, receive))


def _with_sharding(layout: LaneLayout, lists: list[list[Action]]) -> list[list[Action]]:
    """Where parameters of stages with a shard axis are gathered, and where they are dropped.

    All shard ranks have to gather a unit together, so they do it in one order. Where their lists
    are alike, pass by pass, each pass may gather its units and drop them again. Elsewhere (uneven
    micro-batches, routes that cross) they are gathered at the start of the step, before any worker
    waits for a message, and dropped behind their last use.
    """
    for number, rows in reversed(layout.row_lanes.items()):
        stage = layout.plan.stages[number]
        lanes = layout.stage_lanes[number]
        by_pass = layout.plan.schedule.reshard == "after_forward" and all(
            _passes(lists[lane], stage.name) == _passes(lists[rows[0][0]], stage.name)
            for lane in lanes
        )
        for lane in lanes:
            place = _around_passes if by_pass else _around_step
            lists[lane] = place(layout, stage, lists[lane])
    return lists


def _passes(actions: list[Action], stage: str) -> str:
    return " ".join(a.kind for a in actions if a.stage == stage and a.kind in _USES)


def _around_step(layout: LaneLayout, stage: Stage, actions: list[Action]) -> list[Action]:
    units = range(stage.first, stage.stop)
    used = [i for i, a in enumerate(actions) if a.stage == stage.name and a.kind in _USES]
    last = used[-1] + 1 if used else 0
    return [
        *(Action("UNSHARD", unit, stage.name) for unit in units),
        *actions[:last],
        *(Action("RESHARD", unit, stage.name) for unit in units),
        *actions[last:],
    ]


def _around_passes(layout: LaneLayout, stage: Stage, actions: list[Action]) -> list[Action]:
    placed: list[Action] = []
    for action in actions:
        if action.stage != stage.name or action.kind not in _USES:
            placed.append(action)
            continue
        units = list(range(stage.first, stage.stop))
        if action.kind in ("B", "I", "W"):
            units.reverse()
        placed += [Action("UNSHARD", unit, stage.name) for unit in units]
        placed.append(action)
        placed += [Action("RESHARD", unit, stage.name) for unit in units]
    return placed


def _place_reductions(timeline: Timeline, placed: list[list[_Placed]]) -> None:
    """Every unit where its last holder is ready; behind computations that start at that very
    moment.
    """
    layout, last = timeline.layout, 2 * len(timeline.sequence)
    holders = HolderMap(layout.plan)
    for rank, (unit, time) in enumerate(reduction_order(timeline)):
        lanes: dict[int, str] = {}  # one that holds a tied tensor in two stages reduces it once
        for number in holders.bucket_stages[unit]:
            for lane in layout.stage_lanes[number]:
                lanes.setdefault(lane, layout.plan.stages[number].name)
        for lane, stage in lanes.items():
            placed[lane].append((time, last + rank, 0, Action("REDUCE", unit, stage)))


def reduction_order(timeline: Timeline) -> list[tuple[int, float]]:
    """(unit, time) in the order of reduction: when the last holder has finished the unit, late
    units first.
    """
    done: dict[int, float] = {}
    for number, (kind, stage, _) in enumerate(timeline.program.ops):
        if kind in ("B", "W"):
            done[stage] = max(done.get(stage, 0.0), timeline.end[number])
    plan = timeline.layout.plan
    stages = HolderMap(plan).bucket_stages
    ready: list[tuple[float, int]] = []
    for unit in range(len(plan.units)):
        times = [done.get(number, 0.0) for number in stages[unit]]
        ready.append((max(times, default=0.0), -unit))
    return [(-negative, time) for time, negative in sorted(ready)]
