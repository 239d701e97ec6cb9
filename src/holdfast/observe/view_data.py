"""What the page is given of a run: all of it once, and then what is new."""

import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.observe.action_times import MeasuredStep, TimesReader, measured_workers
from holdfast.observe.measured_view import StepPictures, draw_last_step, relative_speeds
from holdfast.observe.run.load import RunFollower
from holdfast.observe.run.model import RunModel
from holdfast.observe.run.summary import (
    summarise,
    summarise_incidents,
    summarise_notes,
    unsettled,
)
from holdfast.observe.run_directory import plan_name
from holdfast.observe.timeline_svg import timeline_svg
from holdfast.observe.timeline_view import Notes, view_of
from holdfast.plan.profile import Profile, UnitCost
from holdfast.plan.timeline import evaluate

POINTS = 3000
"""Steps in a chart, about; more are asked for when one zooms in."""
POINTS_ALONE = 12_000
"""In a file that cannot ask."""
PLANS_ALONE = 24
"""Pictures of plans in a file, those of the newest incidents."""
LEAST_S = 0.1
"""Files are not read more often."""
LEAST_TIMES_S = 1.0
"""The same, of the times of actions."""
KEPT_STEPS = 4
"""Measured steps of every worker that are looked at."""
PLAN_COST = UnitCost(1.0, 1.0, 1.0)
"""Forward 1, backward 2: the picture shows who does what, not how long it took."""

OtherOutcomes = Callable[[RunModel], list[dict[str, Any]]]
"""What the run would have come to otherwise: name, seconds, goodput, parts."""


def no_what_if(run: RunModel) -> list[dict[str, Any]]:
    return []


class MeasuredFeed:
    """The newest measured steps of all workers of a run."""

    def __init__(self, follower: RunFollower, clock: Callable[[], float]) -> None:
        self._follower, self._clock = follower, clock
        self._read_s = 0.0
        self._readers: dict[str, TimesReader] = {}
        self._steps: dict[str, deque[MeasuredStep]] = {}
        self._speeds: dict[str, float] = {}
        self._drawn: StepPictures | None = None
        self._drawn_s = 0.0

    def steps(self) -> Mapping[str, deque[MeasuredStep]]:
        now_s, run_dir = self._clock(), self._follower.run_dir
        if now_s - self._read_s >= LEAST_TIMES_S:
            self._read_s = now_s
            for worker in measured_workers(run_dir):
                reader = self._readers.setdefault(worker, TimesReader(run_dir, worker))
                kept = self._steps.setdefault(worker, deque(maxlen=KEPT_STEPS))
                kept.extend(reader.newest(KEPT_STEPS))
            self._speeds = self._find_speeds()
        return self._steps

    def _find_speeds(self) -> dict[str, float]:
        plan = self._follower.plan(self._follower.model.plan_file)
        now = {
            worker: [step for step in found if step.epoch == found[-1].epoch]
            for worker, found in self._steps.items()
        }
        return relative_speeds(now, plan) if plan is not None else {}

    def add_to(self, workers: list[dict[str, Any]]) -> None:
        """How fast each is beside those that compute the same, and how much memory it uses."""
        steps = self.steps()
        for worker in workers:
            found = steps.get(worker["name"])
            worker["speed"] = self._speeds.get(worker["name"])
            worker["memory_bytes"] = found[-1].peak_bytes if found else None

    def pictures(self) -> StepPictures | None:
        """Of the last step, drawn again when it is old."""
        now_s = self._clock()
        if self._drawn is None or now_s - self._drawn_s >= LEAST_TIMES_S:
            self._drawn_s, steps = now_s, self.steps()
            epochs = dict.fromkeys(step.epoch for found in steps.values() for step in found)
            plans = {epoch: self._follower.plan_of_epoch(epoch) for epoch in epochs}
            known = {epoch: plan for epoch, plan in plans.items() if plan is not None}
            self._drawn = draw_last_step(steps, known) or self._drawn
        return self._drawn


class RunFeed:
    """A run directory and its model, read when asked."""

    def __init__(
        self,
        follower: RunFollower,
        clock: Callable[[], float] = time.time,
        *,
        what_if: OtherOutcomes = no_what_if,
    ) -> None:
        self._follower, self._clock, self._what_if = follower, clock, what_if
        self._read_s = 0.0
        self._if_known = (-1, -1, False)
        self._if: list[dict[str, Any]] = []
        self.measured = MeasuredFeed(follower, clock)
        self.run_dir: Path = follower.run_dir

    @property
    def follower(self) -> RunFollower:
        """Up to date."""
        now_s = self._clock()
        if now_s - self._read_s >= LEAST_S:
            self._read_s = now_s
            self._follower.poll()
        return self._follower

    def head(self) -> dict[str, Any]:
        follower = self.follower
        found = summarise(follower.model, follower.roles(), self._clock())
        self.measured.add_to(found["workers"])
        return {**found, "what_if": self.what_if()}

    def what_if(self) -> list[dict[str, Any]]:
        """Worked out again when something has happened, or many steps are done."""
        run = self._follower.model
        whole = sum(incident.over_s is not None for incident in run.incidents)
        known = (whole, run.next_step // 100, run.ended is not None)
        if known != self._if_known:
            self._if_known, self._if = known, self._what_if(run)
        return self._if

    def all(self, most: int = POINTS) -> dict[str, Any]:
        run = self.follower.model
        return {
            "run": self.head(),
            "incidents": summarise_incidents(run),
            "notes": summarise_notes(run),
            "points": run.series.thinned(most),
        }

    def alone(self) -> dict[str, Any]:
        """All that a file needs, which cannot ask."""
        files = [
            file
            for incident in self.follower.model.incidents[-PLANS_ALONE:]
            for file in (incident.file_before, incident.file)
        ]
        plans = {file: self.plan_picture(file) for file in list(dict.fromkeys(files))}
        drawn = self.measured.pictures()
        return {
            **self.all(POINTS_ALONE),
            "plans": {file: svg for file, svg in plans.items() if svg},
            "step": None if drawn is None else msgspec.to_builtins(drawn),
        }

    def points(self, start_s: float | None, end_s: float | None) -> dict[str, Any]:
        return self.follower.model.series.thinned(POINTS, start_s, end_s)

    def plan_of_epoch(self, epoch: int) -> str:
        return self.plan_picture(plan_name(epoch))

    def plan_picture(self, file: str) -> str:
        """As SVG; empty: there is no such plan."""
        plan = self._follower.plan(file)
        if plan is None:
            return ""
        return timeline_svg(view_of(evaluate(plan, Profile(worker=PLAN_COST)), Notes()))


class NewsReader:
    """One reader's place in a feed."""

    def __init__(self, feed: RunFeed) -> None:
        self._feed = feed
        self._changed = -1
        self._num_steps = self._num_notes = self._num_incidents = 0
        self._unsettled: list[int] = []

    def first(self) -> dict[str, Any]:
        found = self._feed.all()
        self._note()
        return found

    def news(self) -> dict[str, Any] | None:
        """What is new; None: nothing."""
        run = self._feed.follower.model
        if run.num_changed == self._changed:
            return None
        found = {
            "run": self._feed.head(),
            "incidents": summarise_incidents(
                run, [*self._unsettled, *range(self._num_incidents, len(run.incidents))]
            ),
            "notes": summarise_notes(run, self._num_notes),
            "points": run.series.since(self._num_steps),
        }
        self._note()
        return found

    @property
    def is_over(self) -> bool:
        return self._feed.follower.model.ended is not None

    def _note(self) -> None:
        run = self._feed.follower.model
        self._changed = run.num_changed
        self._num_steps, self._num_notes = len(run.series), len(run.notes)
        self._num_incidents = len(run.incidents)
        self._unsettled = unsettled(run)
