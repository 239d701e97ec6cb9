"""The pool of worker processes, and the comparison with the reference: both can fail."""

import subprocess
from dataclasses import replace

import msgspec
import pytest

from holdfast.plan.build import regular_plan
from support.cluster import Cluster, Died, WorkersFailed, leftover_children
from support.pool_work import add, die, fail, hang, pid
from support.training import Task, assert_equal_to_reference, run_training

pytestmark = [pytest.mark.process, pytest.mark.slow]

TASK = Task(num_steps=1)


def test_processes_are_used_again(cluster):
    first = cluster.run(pid, [(), ()])
    assert cluster.run(pid, [(), ()]) == first
    assert len(set(first)) == 2
    assert cluster.run(add, [(1, 2), (3, 4)]) == [3, 7]


def test_an_error_comes_back_with_its_traceback_and_fresh_processes_follow(cluster):
    before = cluster.run(pid, [(), ()])
    with pytest.raises(WorkersFailed, match=r"worker process 1:\n(.*\n)*ValueError: it was 7"):
        cluster.run(fail, [(6,), (7,)])
    assert not set(before) & set(cluster.run(pid, [(), ()]))


def test_who_does_not_end_is_ended(cluster):
    with pytest.raises(WorkersFailed, match=r"processes \[0\] had not ended after 0.2 s"):
        cluster.run(hang, [()], deadline_s=0.2)
    assert cluster.run(add, [(1, 2)]) == [3]


def test_who_waits_for_one_that_failed_is_ended_too(cluster):
    with pytest.raises(WorkersFailed, match=r"(.*\n)*.*\[0\] had not ended when another failed"):
        cluster.run(fail, [("hang",), (7,)])


def test_a_death_is_an_error_unless_it_was_expected(cluster):
    with pytest.raises(WorkersFailed, match="worker process 0:\ndied with exit code -9"):
        cluster.run(die, [()])
    assert cluster.run(die, [()], may_die=[0]) == [Died(-9)]
    assert cluster.run(add, [(1, 2)]) == [3]


def is_left(number):
    return any(line.startswith(f"{number}:") for line in leftover_children())


def test_nothing_is_left_of_a_closed_pool():
    with Cluster() as pool:
        (number,) = pool.run(pid, [()])
        assert is_left(number)
    assert not is_left(number)


def test_a_process_left_behind_is_seen():
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        assert is_left(child.pid)
        child.communicate()
    assert not is_left(child.pid)


@pytest.fixture(scope="module")
def good(cluster):
    run = run_training(cluster, TASK, regular_plan(TASK.units, replicas=2, micro_batches=4))
    assert_equal_to_reference(run)
    return run


def with_worker(run, worker, **changes):
    return replace(run, workers=run.workers | {worker: replace(run.workers[worker], **changes)})


def with_step(run, **changes):
    (report,) = run.workers["n0.g1"].steps
    return with_worker(run, "n0.g1", steps=[msgspec.structs.replace(report, **changes)])


@pytest.mark.parametrize(
    "changes",
    [{"loss": 4.0}, {"norm": 1.0}, {"applied": False}, {"learning_rate": 1.0}, {"step": 3}],
    ids=str,
)
def test_a_wrong_report_is_seen(good, changes):
    with pytest.raises(AssertionError):
        assert_equal_to_reference(with_step(good, **changes))


def test_a_slight_difference_of_the_loss_is_seen(good):
    loss = good.workers["n0.g1"].steps[0].loss
    assert_equal_to_reference(with_step(good, loss=loss * (1 + 1e-11)))
    with pytest.raises(AssertionError):
        assert_equal_to_reference(with_step(good, loss=loss * (1 + 1e-8)))


def test_holders_that_differ_in_a_bit_are_seen(good):
    (report,) = good.workers["n0.g1"].steps
    wrong = report.checksums | {"2/0": report.checksums["2/0"] ^ 1}
    with pytest.raises(AssertionError, match="2/0"):
        assert_equal_to_reference(with_step(good, checksums=wrong))


def test_a_holder_that_says_nothing_is_seen(good):
    with pytest.raises(AssertionError):
        assert_equal_to_reference(with_step(good, checksums={}))


def test_a_missing_step_is_seen(good):
    with pytest.raises(AssertionError):
        assert_equal_to_reference(with_worker(good, "n0.g1", steps=[]))


def test_a_wrong_parameter_is_seen(good):
    slices = dict(good.workers["n0.g1"].slices)
    box, values = slices["block.1.w2"]
    slices["block.1.w2"] = (box, values * (1 + 1e-8))
    with pytest.raises(AssertionError, match=r"block.1.w2"):
        assert_equal_to_reference(with_worker(good, "n0.g1", slices=slices))


def test_a_parameter_that_no_worker_holds_is_seen(good):
    run = good
    for worker in good.workers:
        slices = dict(good.workers[worker].slices)
        del slices["head.norm"]
        run = with_worker(run, worker, slices=slices)
    with pytest.raises(AssertionError, match=r"no worker holds all of head.norm"):
        assert_equal_to_reference(run)
