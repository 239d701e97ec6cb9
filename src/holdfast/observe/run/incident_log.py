"""Which incidents a run had: where one begins, what belongs to it, when it is over.

An incident is open from the moment a worker is found lost until the next step ends under a plan
without it; it is whole when all its workers are back.
"""

from collections.abc import Collection

import msgspec

from holdfast.observe.events import PlanConsidered
from holdfast.observe.run.incidents import (
    COORDINATOR,
    JOINER,
    NODE_WIDE,
    RUN,
    Incident,
    LostWorker,
)
from holdfast.observe.run.intervals import StepInterval


class RunMoment(msgspec.Struct, frozen=True):
    """Where the run is when something happens."""

    at_s: float
    step: int
    """So many were done."""
    shape: str
    file: str
    """Of the plan."""


class IncidentLog:
    def __init__(self) -> None:
        self.incidents: list[Incident] = []
        self._open: Incident | None = None
        self._not_whole: list[Incident] = []
        self._faults: list[str] = []

    @property
    def is_open(self) -> bool:
        return self._open is not None

    def note_fault(self, text: str) -> None:
        """One on purpose; the next incident is its."""
        self._faults.append(text)

    def _add(self, moment: RunMoment, kind: str = "") -> Incident:
        incident = Incident(
            number=len(self.incidents) + 1,
            at_s=moment.at_s,
            step=moment.step,
            faults=self._faults,
            shape_before=moment.shape,
            file_before=moment.file,
        )
        if kind:
            incident.kind = kind
        self._faults = []
        self.incidents.append(incident)
        return incident

    # It begins.

    def open(self, moment: RunMoment) -> Incident:
        """The open one; a new one where there is none."""
        if self._open is None:
            self._open = self._add(moment)
        return self._open

    def killed(self, moment: RunMoment, since_s: float) -> None:
        """All processes of the job, some time after the last step."""
        self._open = self._add(moment, RUN)
        self._open.at_s = since_s

    def lost(self, moment: RunMoment, lost: LostWorker, *, had_role: bool) -> bool:
        """Returns whether the others have to recover."""
        if had_role or self._open is not None:
            incident = self.open(moment)
            incident.lost = [*incident.lost, lost]
            incident.missing = sorted({*incident.missing, lost.worker})
            return True
        self._lost_beside(moment, lost)
        return False

    def lost_idle_node(self, moment: RunMoment, lost: LostWorker) -> None:
        """No worker is missing with it."""
        if self._open is None:
            self._lost_beside(moment, lost)
        else:
            self._open.lost = [*self._open.lost, lost]

    def _lost_beside(self, moment: RunMoment, lost: LostWorker) -> None:
        """No step waits for it."""
        if self._is_of_last(lost):
            self.incidents[-1].lost = [*self.incidents[-1].lost, lost]
        else:
            incident = self._add(moment, JOINER)
            incident.lost, incident.over_s, incident.whole_s = [lost], moment.at_s, moment.at_s

    def _is_of_last(self, lost: LostWorker) -> bool:
        """Is it one more worker of the node that the last incident is about?"""
        before = self.incidents[-1].lost if self.incidents else []
        return lost.kind in NODE_WIDE and any(other.reason == lost.reason for other in before[-1:])

    def lost_coordinator(self, moment: RunMoment, reason: str) -> None:
        incident = self._add(moment, COORDINATOR)
        incident.over_s = incident.whole_s = moment.at_s
        incident.decisions = [reason]

    # What is decided.

    def decided(self, reason: str) -> None:
        if self._open is not None:
            self._open.decisions = [*self._open.decisions, reason]

    def considered(self, event: PlanConsidered, entered: str) -> None:
        """It is of the last incident in which workers were lost."""
        last = next((found for found in reversed(self.incidents) if found.lost), None)
        if last is not None:
            words = f"asked, because {event.asked}: {event.strategy} ({entered}): {event.reason}"
            last.decisions = [*last.decisions, words]
            last.runner_ups = list(event.runner_ups)

    def conclude(self, moment: RunMoment, kind: str, shape: str, file: str) -> Incident:
        """The open one is over with the next step."""
        incident = self.open(moment)
        incident.kind, incident.shape, incident.file = kind, shape, file
        return incident

    # It ends.

    def step_ended(
        self, step: int, interval: StepInterval, costs_s: dict[str, float], usual_s: float
    ) -> None:
        """While one is open: the step may be late, too. Workers that were about to end it when
        others were lost report it only after the recovery.
        """
        incident = self._open
        if incident is None:
            return
        incident.late_s += interval.seconds - usual_s
        for cause, seconds in costs_s.items():
            incident.costs_s[cause] = incident.costs_s.get(cause, 0.0) + seconds
        if interval.is_over:
            self._close(incident, step, interval.end_s, usual_s)

    def _close(self, incident: Incident, step: int, now_s: float, usual_s: float) -> None:
        incident.over_s, incident.over_step = now_s, step
        late_s = incident.late_s
        if incident.kind == RUN:
            late_s = now_s - incident.at_s - usual_s
        incident.stall_s = max(0.0, late_s)
        if not incident.missing and incident.whole_s is None:
            incident.whole_s = now_s
        if incident.missing:
            self._not_whole.append(incident)
        self._open = None

    def back(self, names: Collection[str], now_s: float) -> None:
        """They take part in steps."""
        for incident in self._not_whole:
            incident.missing = [name for name in incident.missing if name not in names]
            if not incident.missing:
                incident.whole_s = now_s
        self._not_whole = [incident for incident in self._not_whole if incident.missing]
