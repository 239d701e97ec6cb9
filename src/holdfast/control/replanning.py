"""Reflex, then reason: when the planner is asked, and what becomes of its answer.

After a failure the step in flight is completed on what is left, without any thought. Then, beside
the training, the planner is asked whether there is a better plan for the workers that are there.
Nothing waits for it: an answer that is late, or does not fit any more, is left out, and the job
goes on with the plan in force.

    asked      when health has changed (a worker lost, back, slow, recovered; a spare, a new node),
               when a missing worker is overdue, when steps take another time than was predicted of
               the plan or than they did, when it is found out which link makes them longer; the
               last two also where something else is wrong already
    not asked  while a change or a round is under way, while a missing worker can still join the
               plan in force, and where nothing could pay for itself before a worker is back
    valid      an answer to the last question, if health and the plan in force are still those of
               the question
    entered    as any planned change, if it is worth it (`plan_worth.py`)
    left       if its steps then take longer than those of the plan before it (`plan_trial.py`);
               the planner would answer the same again, so it is asked when something has changed

Where the planner does not answer, the job's own plan is wanted again once all its workers are
there.
"""

from collections.abc import Mapping, Sequence
from math import isfinite, log, log2

import msgspec

from holdfast.control.change_planning import reachable
from holdfast.control.coordinator_state import CoordinatorState
from holdfast.control.effects import AskPlanner
from holdfast.control.health_history import HealthHistory
from holdfast.control.job_events import (
    EpochEntered,
    EpochReport,
    JobEvent,
    PlanWeighed,
    StepCompleted,
)
from holdfast.control.journal_entries import Wanted
from holdfast.control.plan_question import ExpectedReturn, PlanAnswer, PlanQuestion
from holdfast.control.plan_trial import PlanTrial
from holdfast.control.plan_worth import decide_on, is_worth_asking, price_s
from holdfast.control.planned import is_quiet
from holdfast.control.settings import ReplanSettings
from holdfast.control.step_pace import StepPace
from holdfast.control.worker_reports import ChangeReport
from holdfast.plan.entering import why_not_entered
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Profile
from holdfast.plan.text import format_plan, parse_plan
from holdfast.plan.workers import node_of
from holdfast.planner.health import Health, seen_from

MAX_FAILED = 3
"""Questions without an answer, after which only a new situation is asked about."""
WAVER = 0.08
"""Between two verdicts on a slow worker: less is no change of health."""
DRIFT_MS = 10_000
"""Between two questions because steps take another time; twice as long with each of them ..."""
MAX_DRIFT_DOUBLINGS = 6
"""... up to some minutes."""


class _Asked(msgspec.Struct, frozen=True):
    question: PlanQuestion
    health_epoch: int
    at_ms: int


class Replanner:
    def __init__(self, settings: ReplanSettings, state: CoordinatorState) -> None:
        self._settings, self._state = settings, state
        self.history = HealthHistory(settings)
        self.pace = StepPace()
        self._asked: _Asked | None = None
        self._number = 0
        self._key: tuple[int, ...] = ()
        """Of the situation that was asked about."""
        self._num_failed = 0
        """Questions without an answer, one after the other."""
        self._drifted_ms = self._num_drifts = 0
        self._known_links: set[str] = set()
        """Slow ones that were asked about."""
        self._known_slow: dict[str, float] = {}
        """As it counts: see `_slow`."""
        self._trial = PlanTrial()
        self._predicted: tuple[str, float] = ("", 0.0)
        """The plan that was chosen last, and the time of its steps by the model."""
        self._left_at: tuple[int, int] | None = None
        """The situation in which a plan was left again."""

    # What happens

    def happened(self, events: Sequence[JobEvent]) -> None:
        """What the job has done."""
        now_ms = self._state.now_ms
        for event in events:
            match event:
                case StepCompleted(report=report, seconds=seconds):
                    self.pace.add(report.epoch, seconds)
                    self._trial.stepped(report.epoch, seconds, self.history.epoch)
                case EpochEntered(number=number, before=before, reports=reports):
                    self._entered(number, before, reports, now_ms)

    def _entered(
        self, number: int, before: int | None, reports: Mapping[str, EpochReport], now_ms: int
    ) -> None:
        """What a change took, for those who trained: a joiner has waited, but kept none of them."""
        plan = self._state.journal.plans.get(before or 0)
        trained = plan.seats if plan is not None else {}
        changes = {w: r.stall_s for w, r in reports.items() if isinstance(r, ChangeReport)}
        stall_s = max((s for worker, s in changes.items() if worker in trained), default=0.0)
        joins = any(worker not in trained for worker in changes)
        self.history.entered(number, stall_s, now_ms, joins=joins)
        entered, (predicted, step_s) = self._state.journal.plans.get(number), self._predicted
        is_predicted = entered is not None and format_plan(entered) == predicted
        self.pace.entered(number, step_s if is_predicted else 0.0)

    # Asking

    def look(self) -> None:
        """Is there something to ask, or to want without asking?"""
        state, journal = self._state, self._state.journal
        if self._settings.policy != "auto" or journal.last is None or journal.stop is not None:
            return
        available = tuple(sorted(state.available()))
        home = journal.home
        here = set(available)
        missing = [name for name in home.workers if name not in here]
        slow = self._slow(available)
        away = [name for name in missing if not self._is_node_here(name)]
        self.history.look((available, slow), missing, state.now_ms, away)
        if journal.outstanding is not None:
            self.history.ordered(journal.outstanding.number, state.now_ms)
        self._give_up_if_late()
        if self._asked is not None or not self._is_calm(available):
            return
        now = journal.plans[journal.last.number]
        if self._go_back(now, available):
            return
        if reason := self._reason(now, home, available, missing, slow):
            self._ask_if_useful(now, home, available, missing, reason)

    def _go_back(self, now: Plan, available: Sequence[str]) -> bool:
        """Is the plan before the better one?"""
        journal = self._state.journal
        assert journal.last is not None
        number = journal.last.number
        text, reason = self._trial.better(format_plan(now), number, self.history.epoch)
        if not text or why_not_entered(now, before := parse_plan(text), available):
            return False
        self._left_at = (self.history.epoch, self._num_drifts)
        self._want(before, reason)
        return True

    def _slow(self, available: Sequence[str]) -> tuple[tuple[str, float], ...]:
        """Small differences are none: a verdict that wavers is not a change of health."""
        before, found = self._known_slow, {n: self._state.slow.get(n, 1.0) for n in available}
        self._known_slow = {
            name: before[name] if _is_waver(before.get(name, 1.0), factor) else round(factor, 2)
            for name, factor in found.items()
            if factor > 1
        }
        return tuple(self._known_slow.items())

    def _is_calm(self, available: Sequence[str]) -> bool:
        """Is nothing under way, and nothing to be done without the planner?"""
        state, journal = self._state, self._state.journal
        if journal.outstanding is not None or state.round is not None or not is_quiet(state):
            return False
        if journal.wanted.schedule.is_explicit or not self.pace.seconds:
            return False
        assert journal.last is not None
        return reachable(journal.wanted, available) == journal.plans[journal.last.number]

    def _reason(
        self,
        now: Plan,
        home: Plan,
        available: Sequence[str],
        missing: Sequence[str],
        slow: Sequence[tuple[str, float]],
    ) -> str:
        """Why the planner is asked; empty: nothing is wrong."""
        found = (self._unlike_home(now, home, available, missing, slow), self._drift())
        return "; ".join(reason for reason in found if reason)

    def _unlike_home(
        self,
        now: Plan,
        home: Plan,
        available: Sequence[str],
        missing: Sequence[str],
        slow: Sequence[tuple[str, float]],
    ) -> str:
        """What differs from a job with all its workers, all healthy, under its own plan."""
        if missing:
            verb = "is" if len(missing) == 1 else "are"
            return f"{', '.join(missing)} of the job's own plan {verb} not there"
        if slow:
            return ", ".join(f"{name} takes {factor:g} times as long" for name, factor in slow)
        if now != home:
            return "all workers of the job's own plan are there"
        idle = [name for name in available if name not in now.seats]
        if idle and self.history.epoch:
            return f"{', '.join(idle)} has nothing to do"
        return ""

    def _drift(self) -> str:
        """Said seldom: the pace of a machine may go up and down. Not so once a link is found out to
        be slow, which takes longer than to see that steps are: what was asked before could not
        know the reason.
        """
        assert self._state.journal.last is not None
        if self.pace.running != self._state.journal.last.number:
            return ""
        links = self._state.profile.links
        pause_ms = DRIFT_MS * 2 ** min(self._num_drifts, MAX_DRIFT_DOUBLINGS)
        is_due = self._state.now_ms - self._drifted_ms >= pause_ms
        is_another = self.pace.has_drifted or (bool(links) and self.pace.is_slower)
        is_found = self.pace.was_better and any(link not in self._known_links for link in links)
        if not is_found and not (is_another and is_due):
            return ""
        self._known_links.update(links)
        self._drifted_ms = self._state.now_ms
        self._num_drifts += 1
        words = f"; slow links: {', '.join(links)}" if links else ""
        return f"steps take another time than they did{words}"

    def _ask_if_useful(
        self, now: Plan, home: Plan, available: tuple[str, ...], missing: list[str], reason: str
    ) -> None:
        """Once in every situation. It is another one when a plan would be of use twice as long:
        an overdue worker, a job that has become calm.
        """
        state, history = self._state, self.history
        returns = self._returns(missing)
        lasting_s = min([history.horizon_s(state.now_ms), *(back.in_s for back in returns)])
        prepare_s = history.prepare_s(joins=_has_idle(now, available))
        paid_s = price_s(prepare_s, history.stall_s, comes_back=bool(returns))
        is_worth_it = is_worth_asking(lasting_s, paid_s, self._settings.lasts)
        if not is_worth_it or self._left_at == (history.epoch, self._num_drifts):
            return
        stage = int(log2(max(1.0, lasting_s)))
        key = (history.epoch, state.journal.home_at, stage, self._num_drifts)
        if key != self._key:
            self._key = key
            self._ask(now, home, available, returns, reason)

    def _returns(self, missing: Sequence[str]) -> tuple[ExpectedReturn, ...]:
        """Of those that come back at all."""
        state = self._state
        here = [name for name in missing if not state.can_never_return(name)]
        starts = [name for name in here if self._is_node_here(name)]
        found = self.history.returns_s(starts, here, state.now_ms)
        return tuple(ExpectedReturn(n, found[n]) for n in here if isfinite(found[n]))

    def _is_node_here(self, worker: str) -> bool:
        node = self._state.roster.nodes.get(node_of(worker))
        return node is not None and node.is_connected

    def _ask(
        self,
        now: Plan,
        home: Plan,
        available: tuple[str, ...],
        returns: tuple[ExpectedReturn, ...],
        reason: str,
    ) -> None:
        state, history = self._state, self.history
        assert state.journal.last is not None
        self._number += 1
        question = PlanQuestion(
            number=self._number,
            epoch=state.journal.last.number,
            reason=reason,
            now=format_plan(now),
            home=format_plan(home),
            available=available,
            health=self._health(home, available),
            profile=self._profile(now),
            paced=format_plan(state.journal.plans[self.pace.epoch]),
            pace_s=self.pace.seconds,
            horizon_s=history.horizon_s(state.now_ms),
            returns=returns,
            prepare_s=history.prepare_s(joins=_has_idle(now, available)),
            stall_s=history.stall_s,
            lasts=self._settings.lasts,
            search_s=self._settings.search_s,
        )
        self.pace.thought_about()
        self._asked = _Asked(question, history.epoch, state.now_ms)
        state.effects.append(AskPlanner(question))

    def _profile(self, now: Plan) -> Profile:
        """As it is at this moment: who is slow may just have been found out, and without that its
        times count for those of healthy workers.
        """
        found = self._state.costs.profile(now, self._state.slow)
        return found if found.unit else self._state.profile

    def _health(self, home: Plan, available: Sequence[str]) -> Health:
        workers = tuple(dict.fromkeys((*home.workers, *available)))
        dead = [name for name in home.workers if name not in available]
        return seen_from(home, workers, dead, dict(self._slow(available)))

    # Answers

    def answered(self, answer: PlanAnswer) -> None:
        asked, state = self._asked, self._state
        if asked is None or answer.number != asked.question.number:
            return  # given up before, or answered twice
        self._asked = None
        if answer.error:
            self._failed(answer.error)
            return
        self._num_failed = 0
        if why := self._why_stale(asked):
            self._key = ()
            state.decided(f"a plan is left out: {why}", question=str(answer.number))
            return
        verdict = decide_on(asked.question, answer)
        state.happened([PlanWeighed(asked.question, answer, verdict)])
        if verdict.is_entered:
            assert answer.chosen is not None
            reason = f"{answer.chosen.strategy}: {verdict.reason}"
            self._trial.begin(asked.question, answer, asked.health_epoch)
            self._predicted = (answer.plan, answer.chosen.step_s)
            self._want(parse_plan(answer.plan), reason)

    def _why_stale(self, asked: _Asked) -> str:
        state, journal = self._state, self._state.journal
        available = tuple(sorted(state.available()))
        if journal.stop is not None or journal.ended is not None:
            return "the job stops"
        if journal.last is None or journal.last.number != asked.question.epoch:
            return "it is for a plan that is not in force any more"
        if available != asked.question.available or self.history.epoch != asked.health_epoch:
            return "other workers are there now"
        if self._slow(available) != asked.question.health.slow:
            return "other workers are slow now"
        return "" if self._is_calm(available) else "something else is under way"

    def _give_up_if_late(self) -> None:
        """Or if the question does not fit any more: then another one is due."""
        asked, journal = self._asked, self._state.journal
        if asked is None:
            return
        epoch = journal.last.number if journal.last is not None else 0
        if (epoch, self.history.epoch) != (asked.question.epoch, asked.health_epoch):
            self._asked, self._key = None, ()
            return
        late_ms = self._state.now_ms - asked.at_ms
        if late_ms >= self._settings.advice_ms:
            self._asked = None
            self._failed(f"it did not answer within {late_ms} ms")

    def _failed(self, reason: str) -> None:
        """The job's own plan is known without the planner."""
        state, journal = self._state, self._state.journal
        self._num_failed += 1
        if self._num_failed < MAX_FAILED:
            self._key = ()
        state.decided(f"the planner gave no plan: {reason}; the plan in force stays")
        available = state.available()
        if journal.wanted_by_planner and all(name in available for name in journal.home.workers):
            self._want(journal.home, "all workers of the job's own plan are there")

    def _want(self, plan: Plan, reason: str) -> None:
        state, journal = self._state, self._state.journal
        is_home = plan == journal.home
        at_step = journal.home_at if is_home else 0
        state.record(Wanted(format_plan(plan), reason, at_step, not is_home))
        state.decided(f"another plan is wanted: {reason}")


def _is_waver(known: float, factor: float) -> bool:
    return known > 1 and abs(log(factor / known)) < WAVER


def _has_idle(now: Plan, available: Sequence[str]) -> bool:
    """Workers that a better plan would use would have to catch up."""
    return any(name not in now.seats for name in available)
