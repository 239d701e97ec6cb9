"""What facts change, and which of them end the job."""

from math import nan

import pytest

from holdfast.control.delivery import Sender
from holdfast.control.effects import Fail
from holdfast.control.ending import GivingUp
from holdfast.control.fact_intake import FactIntake
from holdfast.control.facts import (
    NodeConnected,
    NodeDead,
    NodeLost,
    StepReported,
    WorkerHung,
    WorkerTold,
)
from holdfast.control.hang_monitor import HangMonitor
from holdfast.control.job_end import JobEnd
from holdfast.control.replanning import Replanner
from holdfast.control.slowness import SlowWatch
from holdfast.control.worker_reports import StepReport
from support.control_jobs import Job


def test_only_a_fact_about_one_worker_concerns_a_member():
    job = Job().begin()
    state = job.coordinator._state
    hangs = HangMonitor(state.settings, state.journal, state.roster)
    giving_up = GivingUp(is_strict=False, patience_ms=0, now_ms=0)
    replanner = Replanner(state.settings.replan, state)
    slowness = SlowWatch(state.settings.detect, state)
    intake = FactIntake(state, hangs, giving_up, Sender(state), JobEnd(state), replanner, slowness)
    member = job.member("n0.g0")
    assert intake.learn(WorkerHung(member, "slow")) == []
    assert state.suspected == {member: "slow"}
    assert intake.learn(WorkerTold(job.positions["n0.g0"].state())) == [member]
    assert state.suspected == {}
    assert intake.learn(NodeLost("n0")) == []
    assert not state.roster.is_reachable(member)


@pytest.mark.parametrize(("silent_ms", "waits_ms"), [(0, 10_000), (3000, 7000), (60_000, 5000)])
def test_a_silent_node_is_lost_so_long_after_its_last_word(silent_ms, waits_ms):
    """Not after its connection has ended; but a silence of all may be the coordinator's own."""
    job = Job(lost_after_ms=10_000, hang_floor_ms=10**9).begin()
    job.now_ms += silent_ms
    job.take(NodeLost("n0", "nothing was heard of it"))
    state = job.coordinator._state
    job.tick(waits_ms - 1)
    assert state.lost_nodes() == []
    job.tick(1)
    assert state.lost_nodes() == ["n0"]


@pytest.mark.parametrize(("agent", "is_dead"), [("a0", False), ("a1", True), ("", True)])
def test_the_death_of_an_agent_says_nothing_about_the_next_one(agent, is_dead):
    job = Job().begin()
    job.take(NodeDead("n0", "the agent of n0 has ended", will_return=True, agent=agent))
    roster = job.coordinator._state.roster
    assert ("n0" in roster.away) == is_dead
    assert job.coordinator._state.journal.is_fenced(job.member("n0.g0")) == is_dead


def test_whether_a_dead_node_returns_is_said_by_the_last_death():
    """Also by that of an agent that never came."""
    job = Job().begin()
    job.take(NodeDead("n0", will_return=True, agent="a1"))
    job.take(NodeDead("n0", will_return=False, agent="a2"))
    assert job.coordinator._state.can_never_return("n0.g0")
    job.take(NodeConnected(node="n0", agent="a3", places=("n0.g0",)))
    job.take(NodeDead("n0", will_return=False, agent="a2"))
    assert job.coordinator._state.roster.connected() == ["n0", "n1"]


@pytest.mark.parametrize(
    ("policy", "loss", "tokens", "ends"),
    [("stop", nan, 64, 1), ("stop", 2.0, 0, 0), ("skip", nan, 64, 0)],
)
def test_a_step_that_is_not_finite_ends_the_job_where_it_should(policy, loss, tokens, ends):
    job = Job(non_finite=policy).begin()
    for step in (0, 1):
        for name in ("n0.g0", "n1.g0"):
            report = StepReport(step, 1, 0.5, loss, 1.0, tokens, 1e-3, False)
            job.take(StepReported(job.member(name), report))
    failed = [effect.reason for effect in job.effects if isinstance(effect, Fail)]
    line = "step 0: loss nan or gradient norm 1 is not finite (recovery.non_finite = 'stop')"
    assert failed == [line] * ends


def test_workers_that_differ_end_the_job():
    job = Job().begin()
    for name, loss in (("n0.g0", 2.0), ("n1.g0", 2.5)):
        report = StepReport(0, 1, 0.5, loss, 1.0, 64, 1e-3, True)
        job.take(StepReported(job.member(name), report))
    (failed,) = [effect for effect in job.effects if isinstance(effect, Fail)]
    assert "differ in the loss of step 0" in failed.reason
