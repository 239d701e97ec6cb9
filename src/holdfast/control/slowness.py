"""Which workers are slow: the detector, asked with every step of a running job.

A step counts if all workers of its plan have told what they measured, and if it is not among the
first of its epoch, which take longer for reasons of their own. Every worker reports its own times,
so a step that is long as a whole says nothing more about any of them, and is not judged.

What the detector says of a worker is a suspicion. A probe decides: the suspects and some healthy
workers each time the same computation between two steps. Only what it confirms is slow for the rest
of the job (`CoordinatorState.slow`); what is said of links is not probed and stays a suspicion.
Slow workers are probed again and again, until they are as fast as the others: one that has no place
in the plan any more reports no steps, and where steps are noisy a probe is quicker. A suspect that
a probe did not confirm is probed again as well, more and more seldom, as long as its steps stay
long: the probe may have met a moment in which the device was quick, or its answer got lost.
"""

from collections.abc import Collection, Mapping

import msgspec

from holdfast.control.coordinator_state import CoordinatorState
from holdfast.control.effects import RunProbe
from holdfast.control.facts import ProbeAnswered
from holdfast.control.job_events import SlownessFound, StepCompleted
from holdfast.control.report import Member
from holdfast.control.settings import DetectSettings
from holdfast.control.worker_reports import StepTimes
from holdfast.detect.detector import Detector, DetectorSettings
from holdfast.detect.facts import PathReport, StepObservation, WorkerTimes
from holdfast.detect.probe import ProbeOrder, ProbeResult, interpret, order_probe
from holdfast.detect.verdict import CLEARED, RECOVERED, SLOW, SUSPECT, Verdict
from holdfast.errors import HoldfastError
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Profile

SKIPPED_STEPS = 2
"""Of every epoch."""
PROBE_STEPS = 20
"""So long a probe may take; what has not come by then is not waited for."""
AGAIN_STEPS = 5
"""Between two probes of a slow worker."""
DOUBT_STEPS = 20
"""From the first probe of a suspect that was not confirmed to the next; then twice as long."""
TERM_NUMBERS = 2**32
"""Numbers of probes in a term: an answer to a coordinator before this one is none to this one."""


class OpenProbe(msgspec.Struct, frozen=True):
    number: int
    step: int
    verdict: Verdict | None
    """The suspicion; None: the suspect is known to be slow, and may have recovered."""
    order: ProbeOrder
    answers: dict[str, float]


class Doubt(msgspec.Struct, frozen=True):
    """A suspect that no probe has confirmed, though its steps are still long."""

    verdict: Verdict
    step: int
    """Of the last probe."""
    gap_steps: int = DOUBT_STEPS


class SlowWatch:
    def __init__(self, settings: DetectSettings, state: CoordinatorState) -> None:
        self._settings, self._state = settings, state
        self._detector: Detector | None = None
        self._epoch = self._num_steps = 0
        self._incarnations: dict[str, int] = {}
        self._probes: dict[int, OpenProbe] = {}
        self._number = 0
        self._asked_again: dict[str, int] = {}
        """Slow workers: the step at which they were last probed."""
        self._doubts: dict[str, Doubt] = {}

    # With every step

    def stepped(self, event: StepCompleted) -> None:
        state, report = self._state, event.report
        plan = state.journal.plans.get(report.epoch)
        if not self._settings.on or plan is None or not event.measured:
            return
        self._forget_processes(plan)
        if (seen := self._observation(plan, event)) is not None:
            detector = self._watching(plan)
            for verdict in detector.observe(seen) if detector is not None else ():
                self._judge(verdict)
        self._end_late_probes(report.step)
        self._ask_again(plan, report.step)

    def _forget_processes(self, plan: Plan) -> None:
        """Another process of a name may be on another device, and its costs are its own."""
        started = self._state.journal.started
        for worker in dict.fromkeys((*plan.workers, *self._incarnations)):
            now = started.get(worker, 0)
            before = self._incarnations.setdefault(worker, now)
            if before != now:
                self._incarnations[worker] = now
                self._state.costs.forget(worker)
                self._doubts.pop(worker, None)
                if self._detector is not None:
                    self._detector.forget(worker)

    def _observation(self, plan: Plan, event: StepCompleted) -> StepObservation | None:
        """None: it is not like other steps."""
        if event.report.epoch != self._epoch:
            self._epoch, self._num_steps = event.report.epoch, 0
        self._num_steps += 1
        measured = event.measured
        if self._num_steps <= SKIPPED_STEPS or any(w not in measured for w in plan.workers):
            return None
        found = [told.workloads for told in measured.values() if told.workloads]
        fits = bool(found) and len(found[0]) == plan.num_micro_batches
        return StepObservation(
            step=event.report.step,
            step_time=0.0,
            workloads=found[0] if fits else (),
            workers=tuple(WorkerTimes(w, measured[w].times) for w in plan.workers),
            paths=_paths(measured),
        )

    def _watching(self, plan: Plan) -> Detector | None:
        """None: a plan of which no timeline can be made is not watched."""
        detector = self._detector
        if detector is None or detector.plan != plan:
            settings = DetectorSettings(warmup_steps=self._settings.learn_steps)
            try:
                fresh = Detector(plan, self._profile(plan), settings)
            except HoldfastError:
                return None
            if detector is not None:
                fresh.inherit(detector)
            else:
                fresh.presume(self._state.slow)
            self._detector = detector = fresh
        return detector

    def _profile(self, plan: Plan) -> Profile:
        """With who is known to be slow at this moment."""
        found = self._state.costs.profile(plan, self._state.slow)
        return found if found.unit else self._state.profile

    # Verdicts

    def _judge(self, verdict: Verdict) -> None:
        state = self._state
        is_worker = all(">" not in name for name in verdict.who)
        if verdict.kind == RECOVERED and is_worker:
            for name in verdict.who:
                self._doubts.pop(name, None)
            known = [name for name in verdict.who if name in state.slow]
            for name in known:
                state.judge_slow(name, 1.0)
            if known:
                self._say(verdict)
        elif verdict.kind == SLOW:
            self._say(msgspec.structs.replace(verdict, kind=SUSPECT))
            if is_worker and verdict.probe is not None:
                self._probe(verdict, self._with_controls(verdict.probe), verdict.step)
        else:
            self._say(verdict)

    def _say(self, verdict: Verdict, *, is_probed: bool = False) -> None:
        self._state.happened([SlownessFound(verdict, is_probed)])
        self._state.changed()

    # Probes

    def _with_controls(self, order: ProbeOrder) -> ProbeOrder:
        """Where steps make all others suspects, too (a busy host does), those are the measure that
        no probe has found slow: else no probe would ever be concluded again.
        """
        if order.controls or self._detector is None:
            return order
        return order_probe(order.matrix, (), self._not_slow(self._detector.plan))

    def _not_slow(self, plan: Plan) -> list[str]:
        return [worker for worker in plan.workers if worker not in self._state.slow]

    def _probe(self, verdict: Verdict | None, order: ProbeOrder, step: int) -> None:
        self._number += 1
        number = self._state.journal.term * TERM_NUMBERS + self._number
        self._probes[number] = OpenProbe(number, step, verdict, order, {})
        roster = self._state.roster
        for member in roster.states:
            if member.name in order.matrix:
                self._state.effects.append(RunProbe(member, number))

    def answered(self, fact: ProbeAnswered) -> None:
        """A worker tells how long the computation took."""
        probe = self._probes.get(fact.number)
        if probe is None or self._is_old(fact.member):
            return
        probe.answers[fact.member.name] = fact.seconds
        if all(name in probe.answers for name in probe.order.matrix):
            self._conclude(probe)

    def _is_old(self, member: Member) -> bool:
        return self._state.journal.is_fenced(member)

    def _end_late_probes(self, step: int) -> None:
        for probe in list(self._probes.values()):
            if step >= probe.step + PROBE_STEPS:
                self._conclude(probe)

    def _conclude(self, probe: OpenProbe) -> None:
        """The word on every suspect that has answered, beside those who are healthy."""
        del self._probes[probe.number]
        state = self._state
        step = max(probe.step, state.steps.next_step - 1)
        is_measured = any(name in probe.answers for name in probe.order.controls)
        doubted = self._doubt(probe, step)
        if not is_measured:
            return
        suspected_factor = probe.verdict.factor if probe.verdict is not None else 1.0
        for finding in interpret(probe.order, ProbeResult(matrix=probe.answers), suspected_factor):
            (name,) = finding.who
            kind = SLOW if finding.slow else (CLEARED if probe.verdict else RECOVERED)
            if finding.slow:
                self._doubts.pop(name, None)
                state.judge_slow(name, finding.factor)
                if probe.verdict is None:
                    continue
            elif name in doubted:
                continue  # that was said before
            elif probe.verdict is None:
                if name not in state.slow:
                    continue
                state.judge_slow(name, 1.0)
                if self._detector is not None:
                    self._detector.forget(name)
            self._say(
                Verdict(
                    kind=kind,
                    who=(name,),
                    factor=finding.factor,
                    confidence=0.99,
                    step=step,
                    reason=f"{name}: {finding.reason}",
                ),
                is_probed=True,
            )

    def _doubt(self, probe: OpenProbe, step: int) -> list[str]:
        """Until it is confirmed. Those of whom this is not the first probe."""
        if probe.verdict is None:
            return []
        names = [name for name in probe.order.matrix if name not in probe.order.controls]
        before = [name for name in names if name in self._doubts]
        for name in names:
            known = self._doubts.get(name)
            gap_steps = 2 * known.gap_steps if known is not None else DOUBT_STEPS
            self._doubts[name] = Doubt(probe.verdict, step, gap_steps)
        return before

    def _ask_again(self, plan: Plan, step: int) -> None:
        here = {member.name for member in self._state.roster.states}
        self._ask_slow_ones(plan, step, here)
        self._ask_doubtful_ones(plan, step, here)

    def _ask_doubtful_ones(self, plan: Plan, step: int, here: Collection[str]) -> None:
        """Is one of them slow after all?"""
        long = self._detector.slow_workers() if self._detector is not None else {}
        self._doubts = {
            n: d for n, d in self._doubts.items() if n in long and n not in self._state.slow
        }
        for name, doubt in self._doubts.items():
            if step >= doubt.step + doubt.gap_steps and name in here and name in plan.seats:
                order = order_probe((name,), (), self._not_slow(plan))
                self._doubts[name] = msgspec.structs.replace(doubt, step=step)
                self._probe(doubt.verdict, order, step)

    def _ask_slow_ones(self, plan: Plan, step: int, here: Collection[str]) -> None:
        """Are they still slow?"""
        state = self._state
        for name in state.slow:
            if step >= self._asked_again.setdefault(name, step) + AGAIN_STEPS and name in here:
                self._asked_again[name] = step
                self._probe(None, order_probe((name,), (), self._not_slow(plan)), step)
        self._asked_again = {n: at for n, at in self._asked_again.items() if n in state.slow}


def _paths(measured: Mapping[str, StepTimes]) -> tuple[PathReport, ...]:
    """Of a reduction, what its last member saw."""
    found: dict[tuple[tuple[str, ...], int], float] = {}
    for told in measured.values():
        for path in told.paths:
            key = (path.members, path.num_bytes)
            found[key] = min(path.time, found.get(key, path.time))
    return tuple(PathReport(members, size, time) for (members, size), time in found.items())
