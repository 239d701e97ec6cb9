"""The job file's changes of plan, each wanted as soon as the one before is in force."""

from collections.abc import Sequence

from holdfast.control.facts import PlanWanted
from holdfast.control.journal_state import JournalState
from holdfast.control.worker_reports import Planned


class PlannedChangeQueue:
    def __init__(self, plans: Sequence[Planned], journal: JournalState) -> None:
        """`journal` is looked at, and kept up to date by others."""
        self._plans, self._journal = plans, journal
        self._considered = 0
        """The epoch for which the next plan was looked for."""

    def due(self) -> PlanWanted | None:
        """What to want now; said once."""
        journal = self._journal
        if journal.last is None or journal.outstanding is not None:
            return None
        if journal.last.number == self._considered:
            return None
        self._considered = journal.last.number
        known = [planned.at_step for planned in self._plans]
        at = known.index(journal.home_at) if journal.home_at in known else 0
        if at + 1 >= len(known) or journal.plans[journal.last.number] != self._plans[at].plan:
            return None
        following = self._plans[at + 1]
        reason = f"the job file says so: [[change]] at_step = {following.at_step}"
        return PlanWanted(following.plan, reason, following.at_step)
