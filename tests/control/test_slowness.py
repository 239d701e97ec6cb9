"""The detector in the coordinator: suspicion, probe, verdict, recovery."""

import msgspec
import numpy as np

from holdfast.control.coordinator_state import CoordinatorState
from holdfast.control.effects import Happened, Record, RunProbe
from holdfast.control.facts import ProbeAnswered
from holdfast.control.job_events import SlownessFound, StepCompleted
from holdfast.control.journal_entries import Started, TermBegun
from holdfast.control.report import Member
from holdfast.control.settings import ControlSettings, DetectSettings
from holdfast.control.slowness import (
    AGAIN_STEPS,
    DOUBT_STEPS,
    PROBE_STEPS,
    SKIPPED_STEPS,
    SlowWatch,
)
from holdfast.control.state import WorkerState
from holdfast.control.worker_reports import StepReport, StepTimes
from holdfast.detect.facts import Workload
from holdfast.plan.build import regular_plan
from holdfast.plan.without_workers import without_workers
from support.random_plans import make_units

PLAN = regular_plan(make_units(4), replicas=4, stages=2, micro_batches=8)
REPORT = StepReport(
    step=0, epoch=1, seconds=1.0, loss=1.0, norm=1.0, num_tokens=4, learning_rate=0.1, applied=True
)
WARM = 20


class Job:
    """Steps of a job whose devices are as fast as `slow` says."""

    def __init__(self, plan=PLAN, **settings):
        given = DetectSettings(**settings)
        self.state = CoordinatorState(ControlSettings(plan=plan, detect=given))
        self.watch = SlowWatch(given, self.state)
        self.plan, self.epoch, self.step = plan, 1, 0
        self.state.journal.plans[1] = plan
        for worker in plan.workers:
            member = Member(worker, 1)
            self.state.roster.told(WorkerState(member=member))
            self.state.journal.started[worker] = 1
        self.slow, self.rng = {}, np.random.default_rng(5)
        self.tells_work = True

    def run(self, count):
        """(kind, who, probed) of what is said meanwhile, and the probes that are asked for."""
        self.state.effects = []
        for _ in range(count):
            self.watch.stepped(self._completed())
        return self.take()

    def take(self):
        effects, self.state.effects = self.state.effects, []
        said = [e.event for e in effects if isinstance(e, Happened)]
        assert all(isinstance(event, SlownessFound) for event in said)
        verdicts = [(e.verdict.kind, e.verdict.who, e.is_probed) for e in said]
        return verdicts, [e for e in effects if isinstance(e, RunProbe)]

    def answer(self, probes, slow=()):
        for probe in probes:
            seconds = 0.01 * dict(slow).get(probe.member.name, 1.0)
            self.watch.answered(ProbeAnswered(probe.member, probe.number, seconds))
        return self.take()[0]

    def _completed(self):
        self.step += 1
        loads = tuple(
            Workload(64, int(self.rng.integers(100, 4000)), 1)
            for _ in range(self.plan.num_micro_batches)
        )
        measured = {}
        for stage in self.plan.stages:
            mine = self.plan.micro_batches_by_stage[stage.name]
            work = sum(loads[m].tokens + 0.01 * loads[m].squares for m in mine)
            for worker in stage.workers:
                noise = 1 + 0.004 * self.rng.standard_normal()
                seconds = work * noise * self.slow.get(worker, 1.0)
                first = worker == self.plan.workers[0] and self.tells_work
                measured[worker] = StepTimes(
                    times={"F": seconds, "B": 2 * seconds}, workloads=loads if first else ()
                )
        report = msgspec.structs.replace(REPORT, step=self.step, epoch=self.epoch)
        return StepCompleted(report, 1.0, measured)


def test_a_slow_worker_is_probed_confirmed_and_taken_back():
    job = Job()
    assert job.run(WARM) == ([], [])
    job.slow = {"n0.g3": 1.1}
    said, probes = job.run(6)
    assert said == [("suspect", ("n0.g3",), False)]
    assert job.state.slow == {}, "nothing is sure before the probe"
    names = [probe.member.name for probe in probes]
    assert "n0.g3" in names
    assert len(names) > 2
    assert job.answer(probes, {"n0.g3": 1.1}) == [("slow", ("n0.g3",), True)]
    assert 1.08 < job.state.slow["n0.g3"] < 1.12
    job.slow = {}
    assert job.run(10)[0] == [("recovered", ("n0.g3",), False)]
    assert job.state.slow == {}


def test_a_probe_tells_of_recovery_where_the_steps_are_too_noisy():
    job = Job()
    job.run(WARM)
    job.slow = {"n0.g3": 1.1}
    _, probes = job.run(6)
    job.answer(probes, {"n0.g3": 1.1})
    _, probes = job.run(AGAIN_STEPS + 1)
    assert job.answer(probes, {"n0.g3": 1.1}) == []
    _, probes = job.run(AGAIN_STEPS + 1)
    assert job.answer(probes) == [("recovered", ("n0.g3",), True)]
    assert job.state.slow == {}


def test_a_suspect_that_the_probe_clears_is_not_slow():
    job = Job()
    job.run(WARM)
    job.slow = {"n0.g3": 1.2}
    _, probes = job.run(6)
    assert job.answer(probes) == [("cleared", ("n0.g3",), True)]
    assert job.state.slow == {}
    job.slow = {}
    assert job.run(10)[0] == [], "what was not said to be slow is not said to recover"


def test_a_suspect_whose_steps_stay_long_is_probed_again_more_and_more_seldom():
    """The probe met a moment in which the device was quick."""
    job = Job()
    job.run(WARM)
    job.slow = {"n0.g3": 1.2}
    _, probes = job.run(6)
    assert job.answer(probes) == [("cleared", ("n0.g3",), True)]
    gaps = []
    for _ in range(3):
        begun = job.step
        while not (found := job.run(1)[1]):
            assert job.step < begun + 1000
        gaps.append(job.step - begun)
        assert "n0.g3" in [probe.member.name for probe in found]
        last = found
        if len(gaps) < 3:
            assert job.answer(found) == [], "that was said before"
    assert gaps[0] <= DOUBT_STEPS < gaps[1] < gaps[2]
    assert job.answer(last, {"n0.g3": 1.2}) == [("slow", ("n0.g3",), True)]
    assert job.watch._doubts == {}


def test_one_whose_probe_was_not_answered_is_probed_again():
    job = Job()
    job.run(WARM)
    job.slow = {"n0.g3": 1.2}
    job.run(6)
    _, probes = job.run(PROBE_STEPS)
    assert job.answer(probes, {"n0.g3": 1.2}) == [("slow", ("n0.g3",), True)]


def test_a_suspect_that_is_as_fast_as_others_again_is_left_alone():
    job = Job()
    job.run(WARM)
    job.slow = {"n0.g3": 1.2}
    _, probes = job.run(6)
    job.answer(probes)
    job.slow = {}
    assert job.run(200) == ([], [])
    assert job.watch._doubts == {}


def test_an_answer_to_a_coordinator_before_this_one_is_none():
    job = Job()
    job.state.record(TermBegun(2))
    job.run(WARM)
    job.slow = {"n0.g3": 1.2}
    _, probes = job.run(6)
    for probe in probes:
        job.watch.answered(ProbeAnswered(probe.member, 1, 5.0))
    assert job.answer(probes) == [("cleared", ("n0.g3",), True)]


def test_a_probe_that_finds_far_less_than_was_suspected_confirms_nothing():
    job = Job()
    job.run(WARM)
    job.slow = {"n0.g3": 1.25}
    _, probes = job.run(6)
    assert job.answer(probes, {"n0.g3": 1.06}) == [("cleared", ("n0.g3",), True)]
    assert job.state.slow == {}


def test_a_suspect_that_was_never_confirmed_is_a_measure_for_others():
    """A busy host makes both workers of a job suspects; later one of them gets really slow."""
    job = Job(regular_plan(make_units(4), replicas=2, stages=1, micro_batches=8))
    job.run(WARM)
    job.slow = {"n0.g0": 2.0}
    _, probes = job.run(8)
    assert job.answer(probes) == [("cleared", ("n0.g0",), True)]
    job.slow = {"n0.g0": 2.0, "n0.g1": 4.0}
    said, probes = job.run(8)
    assert ("suspect", ("n0.g1",), False) in said
    assert job.answer(probes, {"n0.g1": 4.0}) == [("slow", ("n0.g1",), True)]
    assert list(job.state.slow) == ["n0.g1"]


def test_heavy_documents_are_no_slow_workers():
    assert Job().run(150) == ([], [])


def test_a_probe_without_an_answer_is_given_up():
    job = Job()
    job.run(WARM)
    job.slow = {"n0.g3": 1.2}
    _, probes = job.run(6)
    for probe in probes:
        if probe.member.name == "n0.g3":
            job.watch.answered(ProbeAnswered(probe.member, probe.number, 0.012))
    assert job.run(PROBE_STEPS - 1)[0] == [], "nothing to compare with, nothing is said"
    assert 1 not in job.watch._probes
    job.watch.answered(ProbeAnswered(Member("n0.g3", 1), 1, 0.012))
    assert job.state.slow == {}


def test_the_first_steps_of_an_epoch_and_steps_that_not_all_report_do_not_count():
    job = Job()
    job.run(SKIPPED_STEPS)
    assert job.watch._detector is None
    event = job._completed()
    del event.measured["n0.g0"]
    job.watch.stepped(event)
    assert job.watch._detector is None
    job.run(1)
    assert job.watch._detector is not None


def test_off_is_off():
    job = Job(on=False)
    job.slow = {"n0.g3": 3.0}
    assert job.run(60) == ([], [])


def test_a_slow_worker_without_a_place_is_probed_until_it_has_recovered():
    job = Job()
    job.run(WARM)
    job.state.judge_slow("n0.g7", 1.5)
    left, _ = without_workers(PLAN, ["n0.g7", "n0.g6"])
    job.plan, job.epoch = left, 2
    job.state.journal.plans[2] = left
    _, probes = job.run(AGAIN_STEPS + 1)
    assert job.answer(probes, {"n0.g7": 1.5}) == []
    assert job.state.slow == {"n0.g7": 1.5}
    _, probes = job.run(AGAIN_STEPS + 1)
    assert job.answer(probes) == [("recovered", ("n0.g7",), True)]
    assert job.state.slow == {}
    assert job.run(3 * AGAIN_STEPS)[1] == []


def test_another_process_of_the_name_is_judged_anew():
    job = Job()
    job.run(WARM)
    job.slow = {"n0.g3": 1.5}
    _, probes = job.run(6)
    job.answer(probes, {"n0.g3": 1.5})
    assert job.state.slow
    job.state.record(Started(Member("n0.g3", 2)))
    job.slow = {}
    assert job.run(20)[0] == []
    assert job.state.slow == {}


def test_a_successor_knows_who_is_slow():
    job = Job()
    job.run(WARM)
    job.slow = {"n0.g3": 1.5, "n0.g5": 2.0}
    _, probes = job.run(6)
    job.state.effects = []
    for probe in probes:
        seconds = 0.01 * job.slow.get(probe.member.name, 1.0)
        job.watch.answered(ProbeAnswered(probe.member, probe.number, seconds))
    written = [e.entry for e in job.state.effects if isinstance(e, Record)]
    successor = Job()
    successor.state.read(written, None)
    assert list(successor.state.slow) == ["n0.g3", "n0.g5"]
    assert successor.state.slow == job.state.slow
    successor.slow = job.slow
    for _ in range(6):
        said, probes = successor.run(AGAIN_STEPS + 1)
        assert said + successor.answer(probes, job.slow) == [], "all of that is known"
    successor.slow = {}
    said = successor.run(10)[0]
    assert sorted(said) == [("recovered", ("n0.g3",), False), ("recovered", ("n0.g5",), False)]
    assert successor.state.slow == {}


def test_verdicts_that_hardly_differ_are_not_written_down():
    state = Job().state
    for factor in (1.5, 1.51, 1.49, 1.6, 1.0, 1.0):
        state.judge_slow("n0.g3", factor)
    written = [e.entry.factor for e in state.effects if isinstance(e, Record)]
    assert written == [1.5, 1.6, 1.0]


def test_another_process_is_judged_anew_also_without_a_place():
    job = Job()
    job.run(WARM)
    job.state.judge_slow("n0.g3", 1.5)
    job.plan, _ = without_workers(PLAN, ["n0.g3"])
    job.epoch = 2
    job.state.journal.plans[2] = job.plan
    job.run(1)
    assert "n0.g3" in job.state.slow
    job.state.record(Started(Member("n0.g3", 2)))
    job.run(1)
    assert job.state.slow == {}


def test_without_workloads_nothing_is_claimed_of_the_work():
    job = Job()
    job.tells_work = False
    assert job.run(100)[0] == []
