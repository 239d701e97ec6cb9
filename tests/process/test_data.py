"""A job over files, with workers killed in a step and in an evaluation, ends as one undisturbed
worker does: the same losses, of training and of the validation set.
"""

import pytest
import torch.distributed as dist

from data.sources import texts, write_json_lines
from holdfast.control.worker_reports import Planned
from holdfast.engine.scripted import scripted_trainer
from holdfast.observe.events import Evaluated, FaultInjected, Recovered, StepDone
from holdfast.observe.journal import read_journal
from holdfast.plan.build import regular_plan
from holdfast.runtime.config.model_source import model_units
from holdfast.runtime.config.settings import read_config
from holdfast.runtime.launch.launcher import run_job
from holdfast.runtime.launch.prepare import prepare_job
from holdfast.runtime.record.recorder import resolved
from holdfast.runtime.worker.build import make_data, make_eval, make_model, trainer_config

JOB = """
[job]
steps = 5
dtype = "float64"
[model]
num_layers = 2
[data]
tokenizer = "bytes"
kind = "packed"
cache = "cache"
rows = 1
micro_batches = 4
[[data.sources]]
path = "a.jsonl"
weight = 2
[[data.sources]]
path = "b.jsonl"
[eval]
path = "held.jsonl"
every_steps = 2
micro_batches = 5
[parallel]
replicas = 2
stages = 2
[[faults]]
kind = "SIGKILL"
target = "r0.s1"
at_step = 1
phase = "backward"
[[faults]]
kind = "SIGKILL"
target = "r1.s0"
at_step = 4
phase = "evaluate"
"""


class Told:
    """(Listener)"""

    def __init__(self):
        self.steps = []

    def step_done(self, report):
        self.steps.append(report)

    def plan_changed(self, report):
        pass

    def stop_requested(self):
        return False


def undisturbed(config):
    """One worker, in this process: (losses, losses of the validation set by step)."""
    plan = regular_plan(model_units(config), micro_batches=config.data.micro_batches)
    told = Told()
    trainer = scripted_trainer(
        plan.workers[0],
        [Planned(0, plan)],
        model=make_model(config),
        data=make_data(config, config.data.micro_batches),
        config=trainer_config(config, "cpu"),
        store=dist.HashStore(),
        listener=told,
        evaluated=make_eval(config),
    )
    trainer.run()
    last, _ = trainer.evaluate_last(config.job.steps)
    trainer.close()
    held_out = {r.step: r.eval_loss for r in told.steps if r.eval_loss is not None}
    return [r.loss for r in told.steps], {**held_out, config.job.steps: last}


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_kills_in_a_step_and_in_an_evaluation_change_nothing(tmp_path, fork_server):
    for seed, name in enumerate(("a", "b", "held")):
        write_json_lines(tmp_path / f"{name}.jsonl", texts(20, seed))
    (tmp_path / "job.toml").write_text(JOB)
    config = read_config(tmp_path / "job.toml", ["--job.run_dir", str(tmp_path / "run")])
    job, events = prepare_job(config), []
    result = run_job(job, on_event=events.append, fork_server=fork_server)
    losses, held_out = undisturbed(resolved(job))
    assert sum(isinstance(event, FaultInjected) for event in events) == 2
    assert any(isinstance(event, Recovered) for event in events)
    done = [event for event in events if isinstance(event, StepDone)]
    assert [event.loss for event in done] == pytest.approx(losses, rel=1e-9)
    found = {e.step: e.loss for e in events if isinstance(e, Evaluated)}
    assert sorted(found) == [0, 2, 4, 5]
    assert found == pytest.approx(held_out, rel=1e-9)
    assert [e.step for e in done if e.eval_loss is not None] == [0, 2, 4]
    written = read_journal(tmp_path / "run" / "journal.jsonl")
    assert {e.step: e.loss for e in written if isinstance(e, Evaluated)} == found
    assert (result.report.eval_step, result.report.eval_loss) == (5, found[5])
