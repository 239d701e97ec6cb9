"""One worker's life, alone and among others."""

from dataclasses import replace
from math import isfinite

import msgspec
import pytest
import torch
import torch.distributed as dist

from holdfast.control.worker_reports import Planned
from holdfast.engine.epoch import TrainerConfig
from holdfast.engine.groups import GroupBroken
from holdfast.engine.optimizer_config import OptimizerConfig
from holdfast.engine.runnable import check_runnable
from holdfast.engine.scripted import scripted_trainer
from holdfast.errors import HoldfastError
from holdfast.models.model import LlamaModel
from holdfast.plan.build import regular_plan
from holdfast.plan.exchanges import plan_exchanges
from support.cluster import Died
from support.engine_plans import make_plan, make_stage, named
from support.training import (
    SMALL,
    TIED,
    Task,
    assert_equal_to_reference,
    assert_holders_agree,
    reference_run,
    run_training,
    train_again_and_again,
    train_until_death,
)

TASK = Task(num_steps=3)
UNITS = TASK.units


def regular(task=TASK, first=0, **degrees):
    count = degrees.get("replicas", 1) * degrees.get("stages", 1) * degrees.get("tensor", 1)
    return regular_plan(
        task.units,
        micro_batches=task.num_micro_batches,
        workers=named(*range(first, first + count)),
        **degrees,
    )


class Notes:
    def __init__(self, stop_after=None):
        self.steps, self.changes, self._stop_after = [], [], stop_after

    def step_done(self, report):
        self.steps.append(report)

    def plan_changed(self, report):
        self.changes.append(report)

    def stop_requested(self):
        return self._stop_after is not None and len(self.steps) >= self._stop_after


def alone(plans, notes, *, store=None, worker="n0.g0", **config):
    return scripted_trainer(
        worker,
        [Planned(step, plan) for step, plan in plans],
        model=LlamaModel(SMALL, seed=1),
        data=TASK.data,
        config=TrainerConfig(**{"num_steps": 3, "dtype": "float64"} | config),
        store=store or dist.HashStore(),
        listener=notes,
    )


def test_a_run_alone():
    notes = Notes()
    trainer = alone([(0, regular())], notes)
    assert trainer.run() == 3
    trainer.close()
    record = reference_run(TASK)
    assert [report.loss for report in notes.steps] == pytest.approx(record.losses, rel=1e-9)
    assert [report.step for report in notes.steps] == [0, 1, 2]
    assert {report.epoch for report in notes.steps} == {0}
    assert {report.num_tokens for report in notes.steps} == {4 * 2 * 8}
    assert all(report.seconds > 0 for report in notes.steps)
    assert trainer.staging_bytes == 0
    assert trainer.plan == regular()
    assert trainer.checksums() == {}
    assert trainer.slices.keys() == TASK.specs.keys()


def test_a_run_may_begin_later():
    notes = Notes()
    assert alone([(2, regular())], notes, num_steps=4).run() == 4
    assert [report.step for report in notes.steps] == [2, 3]


def test_a_change_alone_moves_nothing():
    notes = Notes()
    plans = [(0, regular()), (1, regular(virtual=2, schedule="gpipe"))]
    trainer = alone(plans, notes)
    trainer.run()
    trainer.close()
    (change,) = notes.changes
    assert (change.step, change.epoch, change.bytes_received) == (1, 1, 0)
    assert (change.num_groups_kept, change.num_groups_made) == (0, 0)
    assert [report.epoch for report in notes.steps] == [0, 1, 1]
    losses = reference_run(TASK).losses
    assert [report.loss for report in notes.steps] == pytest.approx(losses, rel=1e-9)


def test_a_stop_ends_after_the_step_in_which_it_was_asked_for():
    notes = Notes(stop_after=1)
    assert alone([(0, regular())], notes, num_steps=9).run() == 2
    assert len(notes.steps) == 2


def test_someone_without_a_role_has_nothing_to_do():
    trainer = alone([(0, regular())], Notes(), worker="n0.g9")
    assert trainer.run() == 0
    assert trainer.slices == {}
    assert trainer.checksums() == {}


def test_someone_who_waits_for_a_role_can_be_stopped():
    """Also while its groups cannot be made, as no other worker is there."""
    plans = [(0, regular()), (1, regular(first=1))]
    trainer = alone(plans, Notes(stop_after=0), worker="n0.g1", timeout_ms=300)
    assert trainer.run() == 0
    trainer.close()


def test_peers_that_never_come():
    with pytest.raises(GroupBroken, match=r"reduce group \(n0.g0, n0.g1\) of epoch 1"):
        alone([(0, regular(replicas=2))], Notes(), timeout_ms=100)


def test_a_group_that_breaks_inside_other_code_is_a_broken_group():
    """Be its error the cause, or be the groups given up when that code fails."""
    trainer = alone([(0, regular())], Notes())
    wrapped = RuntimeError("backward failed")
    wrapped.__cause__ = GroupBroken("a peer is gone", ("n0.g1",))
    assert trainer._as_broken(wrapped).blamed == ("n0.g1",)
    assert trainer._as_broken(RuntimeError("a bug")) is None
    trainer.communicator.wake("round 3")
    assert "round 3" in str(trainer._as_broken(RuntimeError("aborted")))
    assert trainer._as_broken(ValueError("a bug")) is None
    trainer.close()


def test_what_the_engine_cannot_run_is_refused():
    whole = regular_plan(UNITS, tensor=2, micro_batches=2)
    stage = msgspec.structs.replace(whole.stages[0], axes=(("context", 2),))
    with pytest.raises(HoldfastError, match=r"r0.s0 has context degree 2; the engine runs the"):
        check_runnable(msgspec.structs.replace(whole, stages=(stage,)))
    stages = [make_stage(0, 0, 0, 2, 0), make_stage(0, 1, 2, 5, 0, 1)]
    two_cuts = make_plan(Task(shape=TIED).units, stages, [2])
    with pytest.raises(HoldfastError, match=r"n0.g0 would hold embed.weight in 2 cuts"):
        check_runnable(two_cuts)
    check_runnable(make_plan(UNITS, stages, [2]))
    check_runnable(regular(replicas=2, stages=2, tensor=2))


@pytest.mark.process
def test_staging_is_two_of_the_largest_exchange(cluster):
    plan = regular(replicas=2, stages=2)
    run = run_training(cluster, TASK, plan)
    exchanges = plan_exchanges(plan)
    for worker, told in run.workers.items():
        sizes = [e.num_elements for unit in exchanges for e in unit if worker in e.members]
        assert told.staging_bytes == 2 * max(sizes) * 8
        print(f"{worker}: {told.staging_bytes} bytes of staging for {sum(sizes) * 8} of gradients")


@pytest.mark.process
def test_one_who_asks_for_a_stop_stops_all_after_the_same_step(cluster):
    run = run_training(
        cluster, replace(TASK, num_steps=50), regular(stages=3), stop_at={"n0.g1": 2}
    )
    assert {told.next_step for told in run.workers.values()} == {3}
    assert {len(told.steps) for told in run.workers.values()} == {3}


@pytest.mark.process
def test_a_stop_before_a_change_leaves_no_worker_behind(cluster):
    """The groups of the next plan are there or on their way; the newcomer waits for its role."""
    plans = [(0, regular(stages=2)), (40, regular(first=1, stages=2))]
    stops = {"n0.g0": 2, "n0.g2": 0}
    run = run_training(cluster, replace(TASK, num_steps=50), plans, stop_at=stops)
    assert {w: len(told.steps) for w, told in run.workers.items()} == {
        "n0.g0": 3,
        "n0.g1": 3,
        "n0.g2": 0,
    }


@pytest.mark.process
def test_checksums_only_when_asked_for(cluster):
    asked = run_training(cluster, TASK, regular(replicas=2))
    assert all(len(r.checksums) == 5 for told in asked.workers.values() for r in told.steps)
    plain = run_training(cluster, TASK, regular(replicas=2), verify=False)
    assert all(r.checksums == {} for told in plain.workers.values() for r in told.steps)


@pytest.mark.process
def test_a_step_that_is_not_finite_is_skipped_by_all(cluster):
    """An absurd learning rate spoils the model in step 0; from then on nothing is applied."""
    task = Task(
        num_steps=4, optimizer=OptimizerConfig(learning_rate=1e200, weight_decay=0.0, clip_norm=0.0)
    )
    plans = [(0, regular(task, stages=2)), (2, regular(task, replicas=2))]
    run = run_training(cluster, task, plans)
    assert_holders_agree(run)
    for told in run.workers.values():
        assert [report.applied for report in told.steps] == [True, False, False, False]
        assert isfinite(told.steps[0].norm)
        assert not isfinite(told.steps[1].norm)
    for name, (_, values) in run.workers["n0.g0"].slices.items():
        assert (values == run.workers["n0.g1"].slices[name][1]).all()


@pytest.mark.process
def test_the_death_of_one_is_an_error_for_all_not_a_hang(cluster):
    """Both its neighbours are waiting for a message of it."""
    task, plan = replace(TASK, num_steps=50), regular(stages=3)
    run = run_training(cluster, task, plan, work=train_until_death, may_die=[1], timeout_ms=5000)
    assert run.workers.pop("n0.g1") == Died(-9)
    for story in run.workers.values():
        assert "group (n0.g" in story


@pytest.mark.process
def test_run_after_run_leaves_nothing_behind(cluster):
    """With changes in between: descriptors and threads of a worker stay as they were."""
    task = replace(TASK, num_steps=6)
    plans = [(n, regular(task, **d)) for n, d in enumerate([{"replicas": 2}, {"stages": 2}] * 3)]
    run = run_training(cluster, task, plans, work=train_again_and_again)
    for told in run.workers.values():
        counts = told.resources
        print(f"(file descriptors, threads) after each of {len(counts)} runs: {counts}")
        # Fewer is no leak: the kernel may list a thread that has ended for a moment.
        assert all(a <= b for later in counts[2:] for a, b in zip(later, counts[1], strict=True))
    assert_equal_to_reference(run)


@pytest.mark.process
def test_all_that_moves_and_trains_stays_in_its_dtype(cluster):
    task = replace(TASK, dtype="float32")
    run = run_training(cluster, task, [(0, regular(task)), (1, regular(task, tensor=2))])
    for told in run.workers.values():
        for _, values in told.slices.values():
            assert torch.from_numpy(values).dtype is torch.float32
