"""Which plan a run in the simulator is under, decided as the job decides it.

The wanted plan stays until another one is worth the change: the same question (`PlanQuestion`), the
same search, the same price of a change and the same expectation of when health changes again
(`control/plan_worth.py`, `control/health_history.py`). What is lost is left out of the wanted plan
until it is back. Delays are those that the run itself has measured.

Decisions are made on what is known. A change of speed is known some steps later, at the pace of the
plan in force; and not before the detector has learned what is usual under that plan, which begins
anew with every plan that is entered.
"""

from collections.abc import Callable, Collection
from math import inf

import msgspec

from holdfast.control.change_planning import reachable
from holdfast.control.health_history import HealthHistory
from holdfast.control.plan_question import ExpectedReturn, PlanAnswer, PlanQuestion
from holdfast.control.plan_worth import decide_on, is_worth_asking, price_s
from holdfast.control.settings import ReplanSettings
from holdfast.plan.lanes import layout_of
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Profile
from holdfast.plan.text import format_plan, parse_plan
from holdfast.plan.timeline import evaluate
from holdfast.planner.health import seen_from
from holdfast.schedule.orders import compute_orders
from holdfast.sim.cluster.health import ClusterDamage
from holdfast.sim.cluster.live_costs import LiveCosts

Ask = Callable[[PlanQuestion], PlanAnswer]

SUSPECT_STEPS = 3
"""Of the steps until a slow worker is adapted to, those that the detector has to see."""
LEAST_RATE = 0.05
"""Where nothing trains, no step says anything."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided about the plan."""

    is_entered: bool
    strategy: str = "as it is"
    reason: str


class LivePlans:
    def __init__(
        self,
        home: Plan,
        profile: Profile,
        measured: LiveCosts,
        settings: ReplanSettings,
        ask: Ask,
        learn_steps: int = 0,
    ) -> None:
        """`learn_steps`: of the detector, under every plan."""
        self._learn_steps = learn_steps
        self._home, self._settings, self._measured, self._ask = home, settings, measured, ask
        self._profile = msgspec.structs.replace(profile, slow={})
        self._history = HealthHistory(settings)
        self._wanted = self._before = home
        self._entered_ms = self._seen_ms = 0
        """From then on the wanted plan is in force, until then the one before."""
        self._num_asked = 0
        self._gone: dict[str, None] = {}
        self._away: dict[str, None] = {}
        """Of those who are gone, who is not started again at once: the others are no change of
        health (`HealthHistory`).
        """
        self._actual: dict[str, float] = {}
        self._known: dict[str, float] = {}
        """Who is slow, and who is known to be."""
        self._notices: dict[str, int] = {}
        """When a change of speed is known, by worker."""
        modelled_s = self._modelled_s(home, {})
        self._home_s = max(modelled_s, measured.step_ms / 1000)
        self._more_s = self._home_s - modelled_s
        """Of every step, beyond the model."""
        self._last_rate = 1.0
        self._rates: dict[tuple[str, tuple[tuple[str, float], ...]], float] = {}

    # The plan in force

    def pace(self, damage: ClusterDamage, now_ms: int) -> float:
        """The rate at this moment of the run."""
        before_ms = self._step_ms(self._last_rate)
        self._seen_ms, self._last_rate = now_ms, self.rate(damage, now_ms)
        dead, slow = self._names(damage)
        for worker in dict.fromkeys((*slow, *self._actual)):
            if slow.get(worker, 1.0) != self._actual.get(worker, 1.0) and worker not in dead:
                self._notices[worker] = now_ms + self._notice_ms(worker in slow, now_ms, before_ms)
        self._actual = slow
        return self._last_rate

    def unnoticed_ms(self, now_ms: int) -> int:
        """Until the next change of speed is known, if none is at this moment."""
        waits = [at_ms - now_ms for at_ms in self._notices.values()]
        return max(0, min(waits, default=0))

    def _notice_ms(self, is_slower: bool, now_ms: int, before_ms: float) -> int:
        """From now on; `before_ms`: a step until now."""
        step_ms = self._step_ms(self._last_rate)
        if not is_slower:
            return round(self._measured.recovered_steps * step_ms)
        learned = (now_ms - self._entered_ms) / before_ms if self._entered_ms else inf
        more = max(0.0, self._learn_steps - learned - SUSPECT_STEPS)
        return round((self._measured.slow_steps + more) * step_ms)

    def _step_ms(self, rate: float) -> float:
        return 1000 * self._home_s / max(rate, LEAST_RATE)

    def _learn_anew(self, damage: ClusterDamage) -> None:
        """A plan is entered: what is usual under it is not known yet."""
        rate = self.rate(damage, self._entered_ms)
        steps = self._measured.slow_steps + max(0, self._learn_steps - SUSPECT_STEPS)
        known_ms = self._entered_ms + round(steps * self._step_ms(rate))
        for worker, at_ms in self._notices.items():
            if worker in self._actual and at_ms > self._entered_ms:
                self._notices[worker] = max(at_ms, known_ms)

    def _believed(self, dead: Collection[str], now_ms: int) -> dict[str, float]:
        """Who is known to be slow. Another process in the place of a dead one is not."""
        self._actual = {w: f for w, f in self._actual.items() if w not in dead}
        for worker in [n for n, at_ms in self._notices.items() if at_ms <= now_ms or n in dead]:
            del self._notices[worker]
        known = {w: f for w, f in self._known.items() if w in self._notices}
        told = {w: f for w, f in self._actual.items() if w not in self._notices}
        self._known = known | told
        return self._known

    def rate(self, damage: ClusterDamage, now_ms: int) -> float:
        """Throughput relative to the undisturbed job; 0 where a part of the model has no stage.
        More than 1 where a plan that was found after a failure is the faster one.
        """
        dead, slow = self._names(damage)
        plan = reachable(self._plan(now_ms), self._available(dead))
        if plan is None:
            return 0.0
        key = (format_plan(plan), tuple(sorted(slow.items())))
        if key not in self._rates:
            step_s = self._modelled_s(plan, slow) + self._more_s
            self._rates[key] = round(self._home_s / step_s, 9)  # of the job's own plan exactly 1
        return self._rates[key]

    def has_seat(self, pipeline: int, stage: int) -> bool:
        """Does any worker of this seat of the job's own plan train?"""
        workers = self._home.replicas[pipeline][stage].workers
        return any(worker in self._plan(self._seen_ms).seats for worker in workers)

    def _plan(self, now_ms: int) -> Plan:
        return self._wanted if now_ms >= self._entered_ms else self._before

    def _available(self, dead: Collection[str]) -> tuple[str, ...]:
        return tuple(sorted(name for name in self._home.workers if name not in dead))

    def _modelled_s(self, plan: Plan, slow: dict[str, float]) -> float:
        here = {worker: factor for worker, factor in slow.items() if worker in plan.seats}
        costs = msgspec.structs.replace(self._profile, slow=here)
        return evaluate(plan, costs, compute_orders(layout_of(plan))).iteration_time

    def _names(self, damage: ClusterDamage) -> tuple[tuple[str, ...], dict[str, float]]:
        """Who is gone, and who is slow; of a seat, the last are gone."""
        dead: list[str] = []
        slow: dict[str, float] = {}
        for pipeline, hurt in damage.pipelines:
            for index, seat in hurt:
                workers = self._home.replicas[pipeline][index].workers
                dead += workers[len(seat) :]
                slow |= {w: 1 / s for w, s in zip(workers, seat, strict=False) if s < 1}
        return tuple(dead), slow

    # Another plan

    def consider(
        self, damage: ClusterDamage, now_ms: int, delay_ms: int, *, is_away: bool
    ) -> Change:
        """Health is known to be this. A plan that is worth it is in force after the delay.
        `is_away`: those who are newly gone come back with their node, or not at all; for a process
        that is started again nothing is asked, as it is back before another plan would pay.
        """
        dead = self._names(damage)[0]
        slow = self._believed(dead, now_ms)
        available = self._available(dead)
        away = [n for n in dead if n in self._away or (is_away and n not in self._gone)]
        self._gone, self._away = dict.fromkeys(dead), dict.fromkeys(away)
        known = tuple(sorted((name, round(factor, 1)) for name, factor in slow.items()))
        self._seen_ms = now_ms
        self._history.look((self._available(away), known), away, now_ms, away)
        now = reachable(self._plan(now_ms), available)
        is_restarting = any(name not in self._away for name in dead)
        if is_restarting or now is None or self._settings.policy != "auto":
            return Change(is_entered=False, reason="what is left goes on")
        if not (dead or known or now != self._home):
            return Change(is_entered=False, reason="nothing is missing")
        question = self._question(now, available, dead, dict(known), now_ms)
        paid_s = price_s(question.prepare_s, question.stall_s, comes_back=bool(question.returns))
        if not is_worth_asking(question.lasting_s, paid_s, question.lasts):
            return Change(is_entered=False, reason="no plan would be of use for long enough")
        answer = self._ask(question)
        verdict = decide_on(question, answer)
        if verdict.is_entered:
            self._before, self._wanted = self._plan(now_ms), parse_plan(answer.plan)
            self._entered_ms = now_ms + delay_ms
            self._learn_anew(damage)
        strategy = answer.chosen.strategy if answer.chosen is not None else "as it is"
        return Change(is_entered=verdict.is_entered, strategy=strategy, reason=verdict.reason)

    def _question(
        self,
        now: Plan,
        available: tuple[str, ...],
        dead: tuple[str, ...],
        slow: dict[str, float],
        now_ms: int,
    ) -> PlanQuestion:
        self._num_asked += 1
        measured, home = self._measured, format_plan(self._home)
        in_s = dict.fromkeys(dead, measured.rejoin_ms / 1000)
        in_s |= self._history.returns_s((), self._away, now_ms)
        joins = any(name not in now.seats for name in available)
        return PlanQuestion(
            number=self._num_asked,
            epoch=0,
            reason="health has changed",
            now=format_plan(now),
            home=home,
            available=available,
            health=seen_from(self._home, self._home.workers, dead, slow),
            profile=self._profile,
            paced=home,
            pace_s=self._home_s,
            horizon_s=self._history.horizon_s(now_ms),
            returns=tuple(ExpectedReturn(name, in_s[name]) for name in dead),
            prepare_s=(measured.rejoin_ms if joins else measured.prepare_ms) / 1000,
            stall_s=measured.switch_ms / 1000,
            lasts=self._settings.lasts,
            search_s=self._settings.search_s,
        )
