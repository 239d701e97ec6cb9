"""The validation set gives one number, whatever the plan, and training does not notice it."""

import pytest
import torch
import torch.distributed as dist

from holdfast.control.worker_reports import Planned
from holdfast.engine.data import SyntheticTask
from holdfast.engine.epoch import TrainerConfig
from holdfast.engine.evaluation import EvalPlan
from holdfast.engine.optimizer_config import OptimizerConfig
from holdfast.engine.packed import PackedTask
from holdfast.engine.scripted import scripted_trainer
from holdfast.models.llama import initial_state
from holdfast.models.model import LlamaModel
from holdfast.models.presets import LlamaOptions
from holdfast.plan.build import regular_plan
from holdfast.plan.model_catalog import llama_units
from holdfast.plan.plan import Schedule
from reference.loop import Settings, mean_gradients, train
from reference.model import ReferenceLlama
from support.live_groups import run_together
from support.training import INITIAL_SEED, RUN_SEED, SMALL

STEPS, MICRO_BATCHES = 3, 4
HELD_OUT = 1 << 40


class Reports:
    """(Listener) Of every step."""

    def __init__(self):
        self.found = []

    def step_done(self, report):
        self.found.append(report)

    def plan_changed(self, report):
        pass

    def stop_requested(self):
        return False


def plan_of(**degrees):
    return regular_plan(llama_units(SMALL, 16), micro_batches=MICRO_BATCHES, **degrees)


def run(plans, *, count=6, dropout=0.0, held_out=True, data=None):
    """The reports of all workers; every worker on a thread."""
    data = data or SyntheticTask(SMALL.vocab, 8, 2, 3)
    store = dist.HashStore()
    workers = tuple(dict.fromkeys(name for planned in plans for name in planned.plan.workers))
    told = {worker: Reports() for worker in workers}

    def work(worker):
        trainer = scripted_trainer(
            worker,
            plans,
            model=LlamaModel(SMALL, LlamaOptions(dropout=dropout), seed=INITIAL_SEED),
            data=data,
            config=TrainerConfig(num_steps=STEPS, seed=RUN_SEED, dtype="float64"),
            store=store,
            listener=told[worker],
            evaluated=EvalPlan(data, count, 2, HELD_OUT) if held_out else None,
        )
        trainer.run()
        trainer.close()

    run_together(dict.fromkeys(workers, work), {worker: worker for worker in workers})
    return [reports.found for reports in told.values()]


def reference(count):
    """A plain loop, and the plain model on the validation set before steps 0 and 2."""
    data, config = SyntheticTask(SMALL.vocab, 8, 2, 3), OptimizerConfig()
    settings = Settings(
        learning_rate=config.rate_at,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        clip_norm=config.clip_limit,
    )

    def batches(step, count=MICRO_BATCHES):
        return [data.micro_batch(step, index) for index in range(count)]

    initial = initial_state(SMALL, INITIAL_SEED, dtype=torch.float64)
    record = train(SMALL, initial, batches, STEPS, settings, keep_states=True)
    states = [initial_state(SMALL, INITIAL_SEED, dtype=torch.float64), record.states[1]]
    found = [mean_gradients(ReferenceLlama(SMALL, s), batches(HELD_OUT, count)) for s in states]
    return record.losses, found


@pytest.fixture(scope="module")
def expected():
    return {count: reference(count) for count in (3, 6)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("degrees", "count"),
    [
        ({}, 6),
        ({"stages": 2, "tensor": 2}, 6),
        ({"replicas": 2, "stages": 2, "schedule": Schedule("gpipe")}, 3),
        ({"tensor": 3}, 3),
        ({"shard": 2, "stages": 2}, 6),
        ({"shard": 2, "schedule": Schedule("1f1b", reshard="after_forward")}, 3),
        ({"stages": 2, "virtual": 2, "schedule": Schedule("interleaved")}, 6),
    ],
    ids=str,
)
def test_the_number_is_that_of_a_plain_model_whatever_the_plan(degrees, count, expected):
    losses, held_out = expected[count]
    for reports in run([Planned(0, plan_of(**degrees))], count=count):
        assert [report.loss for report in reports] == pytest.approx(losses, rel=1e-9)
        assert [report.eval_loss is not None for report in reports] == [True, False, True]
        found = [report.eval_loss for report in reports if report.eval_loss is not None]
        assert found == pytest.approx(held_out, rel=1e-9)
        assert reports[0].eval_tokens == count * 16
        assert reports[0].eval_s > 0 == reports[1].eval_s


@pytest.mark.slow
def test_a_change_of_plan_does_not_change_it(expected):
    plans = [Planned(0, plan_of(stages=2)), Planned(1, plan_of(replicas=2))]
    losses, held_out = expected[6]
    reports = run(plans)[0]
    assert [report.loss for report in reports] == pytest.approx(losses, rel=1e-9)
    assert reports[2].eval_loss == pytest.approx(held_out[1], rel=1e-9)


@pytest.mark.slow
def test_training_with_dropout_does_not_notice_it(expected):
    plan = [Planned(0, plan_of(stages=2))]
    with_it, without = (run(plan, dropout=0.3, held_out=choice)[0] for choice in (True, False))
    assert [report.loss for report in with_it] == [report.loss for report in without]
    assert [report.norm for report in with_it] == [report.norm for report in without]
    assert with_it[0].eval_loss == pytest.approx(expected[6][1][0], rel=1e-9), "dropout is off"
    assert all(report.eval_loss is None for report in without)


@pytest.mark.slow
def test_packed_documents_are_evaluated_as_they_are_trained():
    data = PackedTask(SyntheticTask(SMALL.vocab, 8, 2, 3), 2)
    found = [
        run([Planned(0, plan_of(**degrees))], data=data)[0][2].eval_loss
        for degrees in ({}, {"stages": 3}, {"tensor": 2})
    ]
    assert found == pytest.approx([found[0]] * 3, rel=1e-9)
