"""Real processes, real kills: a fault in every phase of a step, equal to an undisturbed run.

The same points, and several deaths at once, are hit more finely in tests/engine/test_completion.py,
where every worker is a thread; the phases that are left to `make chaos` here are hit in
test_redundant_and_fast.py, too.
"""

import psutil
import pytest

from holdfast.observe.events import StepDone
from holdfast.runtime.faults.kinds import Fault
from holdfast.runtime.launch.launcher import run_job
from holdfast.runtime.launch.prepare import prepare_job
from support.chaos import check_equal, left_behind, make_config, without_planner
from support.sample import some

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(120)]

NUM_STEPS = 18
STAGES = {"replicas": 3, "stages": 2}
PHASES = (
    ("reduce 3", "forward"),
    ("reduce 2", "message"),
    ("reduce 1", "backward"),
    ("reduced", "agree"),
    ("agreed", "apply"),
    ("applied", "forward"),
)
"""Of two workers, one after the other."""


@pytest.fixture
def survive(fork_server, undisturbed, tmp_path):
    """Runs a job with these faults; it must equal the undisturbed one and leave nothing behind."""

    def run(*faults, on_event=None, shape=STAGES, planner=False):
        config = make_config(shape, NUM_STEPS, str(tmp_path / "run"), faults=faults)
        config = config if planner else without_planner(config)
        result = run_job(prepare_job(config), fork_server=fork_server, on_event=on_event)
        check_equal(undisturbed(NUM_STEPS), result, str([fault.kind for fault in faults]))
        assert left_behind(fork_server, tmp_path) == []
        return result.report

    return run


def kill(target, at_step, phase=""):
    return Fault(kind="SIGKILL", target=target, at_step=at_step, phase=phase)


@pytest.mark.parametrize(
    ("first", "second"), some(PHASES, [("reduce 3", "forward"), ("agreed", "apply")])
)
def test_a_kill_in_every_phase(survive, first, second):
    faults = kill("n3.g0", 5, first), kill("n2.g0", 14, second)
    report = survive(*faults, shape={"replicas": 2, "stages": 2})
    assert [recovery.lost for recovery in report.recoveries] == [("n3.g0",), ("n2.g0",)]


@pytest.mark.chaos
def test_two_kills_in_one_step(survive):
    survive(kill("n2.g0", 5, "reduce 1"), kill("n5.g0", 5, "backward"))


@pytest.mark.chaos
def test_a_second_kill_while_the_first_is_mended(survive):
    survive(kill("n2.g0", 5, "forward"), kill("n4.g0", 6, "forward"))


@pytest.mark.chaos
def test_all_replicas_but_one(survive):
    lost = [f"n{number}.g0" for number in (2, 3, 4, 5)]
    report = survive(*[kill(name, 5, "forward") for name in lost])
    assert sorted(name for recovery in report.recoveries for name in recovery.lost) == lost


def test_a_node_is_lost(survive):
    report = survive(Fault(kind="NODE_LOSS", target="n3", at_step=5), planner=True)
    assert report.recoveries


def test_the_coordinator_and_a_worker_are_lost(survive):
    """The first coordinator has nothing else to do; the second dies with a worker."""
    survive(
        Fault(kind="COORDINATOR_LOSS", at_step=4),
        Fault(kind="COORDINATOR_LOSS", at_step=12),
        kill("n3.g0", 13, "reduce 1"),
    )


def test_the_store_and_a_worker_are_lost(survive, fork_server):
    """All groups are made anew after that, through the next store."""

    def on_event(event):
        if isinstance(event, StepDone) and event.step == 4:
            children = psutil.Process(fork_server.pid).children()
            min(children, key=lambda child: child.create_time()).kill()

    report = survive(kill("n3.g0", 12, "reduce 1"), on_event=on_event)
    assert {name for recovery in report.recoveries for name in recovery.lost} == {"n3.g0"}


def test_workers_that_hang_are_found(survive):
    """One that is stopped, and one whose interpreter is locked."""
    report = survive(
        Fault(kind="SIGSTOP", target="n3.g0", at_step=5),
        Fault(kind="LOCK_GIL", target="n4.g0", at_step=14),
    )
    assert [recovery.lost for recovery in report.recoveries] == [("n3.g0",), ("n4.g0",)]


def test_what_is_no_failure(survive):
    """A short pause; a node that is cut off for a while; and a request to end that does not come
    from the worker's agent: terminals and schedulers signal all processes, and the launcher decides
    what that means.
    """
    report = survive(
        Fault(kind="SIGSTOP", target="n3.g0", at_step=4, duration_s=0.3),
        Fault(kind="PARTITION", target="n4", at_step=8, duration_s=0.5),
        Fault(kind="SIGTERM", target="n5.g0", at_step=10),
    )
    assert report.recoveries == ()


@pytest.mark.parametrize("kinds", [("SEGFAULT", "WORKLOAD_EXC"), ("OS_ABORT", "GPU_ERROR")])
def test_every_kind_of_death(survive, kinds):
    first, second = kinds
    report = survive(
        Fault(kind=first, target="n3.g0", at_step=5), Fault(kind=second, target="n4.g0", at_step=14)
    )
    assert [recovery.lost for recovery in report.recoveries] == [("n3.g0",), ("n4.g0",)]
