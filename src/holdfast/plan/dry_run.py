"""The dry run: walk all workers' action lists together, as the network would, before they
are executed.

Rules of the walk, those of NCCL rather than of a forgiving transport:

    - a send blocks until its receiver is at the matching receive: nothing is buffered;
    - messages carry no tags: what a pair exchanges must come in the same order on both sides;
    - a collective blocks until all its members are at it, and each group has one launch order.

A list that only works thanks to buffering is therefore refused, with the cycle of waits in
words. One part of each kind is walked (`parts.py`); where all workers of a lane do exactly the
same in step with their neighbours, one of them stands for the lane.
"""

from collections.abc import Iterator, Sequence

from holdfast.errors import HoldfastError
from holdfast.plan.action_lists import lower
from holdfast.plan.actions import Action, format_action
from holdfast.plan.groups import transfers
from holdfast.plan.lanes import LaneLayout
from holdfast.plan.parts import representative
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Profile


def dry_run(plan: Plan, profile: Profile = Profile()) -> int:
    """Walk the plan; the number of actions walked, or a HoldfastError that says which
    worker waits for which.
    """
    smaller, left = representative(plan, profile)
    try:
        return _walk(smaller, left)
    except HoldfastError:
        if smaller is not plan:
            _walk(plan, profile)  # refused as well, with the numbers of the plan itself
        raise


def _walk(plan: Plan, profile: Profile) -> int:
    layout, lists = lower(plan, profile)
    walk = _Walk(layout, lists)
    walk.run()
    return sum(len(steps) for steps in walk.steps)


class _Step:
    """What one worker does next: alone (`peer` -1, no group), with a peer, or with a group."""

    __slots__ = ("group", "label", "peer", "sends", "text")

    def __init__(
        self, text: str, peer: int = -1, sends: bool = False, label: str = "", group: str = ""
    ) -> None:
        self.text, self.peer, self.sends = text, peer, sends
        self.label = label  # what is exchanged: both sides must mean the same
        self.group = group


class _Walk:
    def __init__(self, layout: LaneLayout, lists: Sequence[Sequence[Action]]) -> None:
        self.layout = layout
        self.names = _walkers(layout)
        self.number = {name: i for i, name in enumerate(self.names)}
        self.steps: list[list[_Step]] = []
        self.members: dict[str, list[int]] = {}
        for name in self.names:
            lane = layout.lane_of_worker[name]
            self.steps.append([step for a in lists[lane] for step in self._expand(name, a)])
        for walker, steps in enumerate(self.steps):
            for step in steps:
                if step.group:
                    members = self.members.setdefault(step.group, [])
                    if walker not in members[-1:]:
                        members.append(walker)
        self.at = [0] * len(self.names)
        self.arrived: dict[str, dict[int, None]] = {}

    def _expand(self, name: str, action: Action) -> Iterator[_Step]:
        text = format_action(action)
        if action.kind in ("SF", "SB", "RF", "RB"):
            yield from self._exchange(name, action, text)
        elif action.kind == "UNSHARD":
            stage = self.layout.plan.stage(action.stage)
            yield _Step(text, group=f"{text} of {stage.name}")
        elif action.kind == "REDUCE":
            yield _Step(text, group=f"REDUCE{action.number}")
        elif action.kind == "AGREE":
            yield _Step(text, group="AGREE")
        else:
            yield _Step(text)

    def _exchange(self, name: str, action: Action, text: str) -> Iterator[_Step]:
        """One step per worker that this one sends the boundary tensor to or receives it from."""
        plan = self.layout.plan
        sends = action.kind[0] == "S"
        here, there = plan.stage(action.stage), plan.stage(action.peer)
        source, target = (here, there) if sends else (there, here)
        pairs = transfers(*(plan.computing(stage, action.number) for stage in (source, target)))
        for sender, receiver in pairs:
            mine, other = (sender, receiver) if sends else (receiver, sender)
            if mine == name and other != name and other in self.number:
                label = (
                    f"{action.kind[1]}{action.number} {source.name}>{target.name} for {receiver}"
                )
                yield _Step(text, self.number[other], sends, label)

    def run(self) -> None:
        active = list(range(len(self.names)))
        while active:
            walker = active.pop()
            while self._can_move(walker, active):
                pass
        if any(at < len(steps) for at, steps in zip(self.at, self.steps, strict=True)):
            raise HoldfastError(self._story())

    def _can_move(self, walker: int, active: list[int]) -> bool:
        """Take one step if possible; partners that move too are put on `active`."""
        step = self._current(walker)
        if step is None:
            return False
        if step.peer >= 0:
            return self._meet(walker, step, active)
        if step.group and not self._gather(walker, step, active):
            return False
        if not step.group:
            self.at[walker] += 1
        return True

    def _current(self, walker: int) -> _Step | None:
        steps = self.steps[walker]
        return steps[self.at[walker]] if self.at[walker] < len(steps) else None

    def _meet(self, walker: int, step: _Step, active: list[int]) -> bool:
        other = self._current(step.peer)
        if other is None or other.peer != walker:
            return False
        if other.sends == step.sends:
            return False  # both send or both receive: each waits for the other for ever
        if other.label != step.label:
            raise HoldfastError(
                f"{self.names[walker]} is at {step.text} while {self.names[step.peer]} is at "
                f"{other.text}: messages carry no tags, so the two orders must agree"
            )
        self.at[walker] += 1
        self.at[step.peer] += 1
        active.append(step.peer)
        return True

    def _gather(self, walker: int, step: _Step, active: list[int]) -> bool:
        members = self.members[step.group]
        arrived = self.arrived.setdefault(step.group, {})
        arrived[walker] = None
        if len(arrived) < len(members):
            return False
        del self.arrived[step.group]
        for member in members:
            self.at[member] += 1
            if member != walker:
                active.append(member)
        return True

    def _story(self) -> str:
        """The cycle of waits, or the wait for a worker that has finished."""
        walker = next(w for w in range(len(self.names)) if self._current(w) is not None)
        seen: dict[int, int] = {}
        chain: list[int] = []
        while walker not in seen:
            seen[walker] = len(chain)
            chain.append(walker)
            target = self._waits_for(walker)
            if target is None or self._current(target) is None:
                return f"the step can never end: {self._sentence(walker)}, which has finished"
            walker = target
        cycle = chain[seen[walker] :]
        words = "; ".join(self._sentence(member) for member in cycle[:6])
        more = f"; and {len(cycle) - 6} more" if len(cycle) > 6 else ""
        return f"cyclic wait: {words}{more}"

    def _waits_for(self, walker: int) -> int | None:
        step = self._current(walker)
        if step is None:
            return None
        if step.peer >= 0:
            return step.peer
        for member in self.members[step.group]:
            current = self._current(member)
            if current is None or current.group != step.group:
                return member
        return None

    def _sentence(self, walker: int) -> str:
        step, target = self._current(walker), self._waits_for(walker)
        text = step.text if step is not None else "its end"
        other = self.names[target] if target is not None else "no worker"
        return f"{self.names[walker]} at {text} waits for {other}"


def _walkers(layout: LaneLayout) -> list[str]:
    """One worker per lane where lanes are alike, so that workers at the same place only meet
    each other.
    """
    sizes = {len(workers) for workers in layout.lanes}
    alike = len(sizes) == 1 and all(len(lanes) == 1 for lanes in layout.stage_lanes)
    same_place = all(
        stage.workers == layout.lanes[lanes[0]]
        for stage, lanes in zip(layout.plan.stages, layout.stage_lanes, strict=True)
    )
    if alike and same_place:
        return [workers[0] for workers in layout.lanes]
    return [worker for workers in layout.lanes for worker in workers]
