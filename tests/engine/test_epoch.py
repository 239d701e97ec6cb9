"""What belongs to one plan."""

import torch.distributed as dist

from holdfast.control.worker_reports import Planned
from holdfast.engine.epoch import TrainerConfig
from holdfast.engine.scripted import scripted_trainer
from holdfast.models.model import LlamaModel
from holdfast.plan.build import regular_plan
from support.training import SMALL, Task

TASK = Task(num_steps=3)


def test_checksums_are_of_what_several_hold():
    class Quiet:
        def step_done(self, report):
            self.checksums = report.checksums

        def plan_changed(self, report):
            pass

        def stop_requested(self):
            return False

    quiet = Quiet()
    plan = regular_plan(TASK.units, micro_batches=2)
    config = TrainerConfig(num_steps=1, dtype="float64", verify=True)
    trainer = scripted_trainer(
        "n0.g0",
        [Planned(0, plan)],
        model=LlamaModel(SMALL, seed=1),
        data=TASK.data,
        config=config,
        store=dist.HashStore(),
        listener=quiet,
    )
    assert trainer.run() == 1
    assert quiet.checksums == {}
    trainer.close()
