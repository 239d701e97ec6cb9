"""From a plain PyTorch loop to a job and back, by way of plain DCP directories."""

import msgspec
import pytest
import torch
import torch.distributed.checkpoint as dcp

from holdfast.models.llama import initial_state
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.recovery_sections import SnapshotSection
from holdfast.runtime.launch.launcher import run_job
from holdfast.runtime.launch.prepare import prepare_job
from holdfast.runtime.worker.build import make_data
from holdfast.snapshot.disk.checkpoints import list_checkpoints
from reference.loop import Settings, make_optimizer, mean_gradients
from reference.model import ReferenceLlama
from support.chaos import make_config

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
]

NUM_STEPS, SAVED_AT = 12, 5
SHAPE = {"replicas": 2, "stages": 2}


class PlainLoop:
    """The job's model, data and optimizer, in one process and a few lines."""

    def __init__(self, config: JobConfig) -> None:
        self._data, self._optimizer = make_data(config, 0), config.optimizer
        self._micro_batches = config.data.micro_batches
        settings = Settings(
            learning_rate=config.optimizer.rate_at,
            betas=config.optimizer.betas,
            eps=config.optimizer.eps,
            weight_decay=config.optimizer.weight_decay,
        )
        state = initial_state(config.model.shape(), config.job.seed, dtype=torch.float64)
        self.model = ReferenceLlama(config.model.shape(), state)
        self.adam = make_optimizer(self.model, settings)

    def step(self, number: int) -> float:
        count = self._micro_batches
        batches = [self._data.micro_batch(number, index) for index in range(count)]
        loss = mean_gradients(self.model, batches, number)
        limit = self._optimizer.clip_limit or float("inf")
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        for group in self.adam.param_groups:
            group["lr"] = self._optimizer.rate_at(number)
        self.adam.step()
        return loss

    def state(self, step: int) -> dict[str, object]:
        named = self.model.named()
        moments = {name: dict(self.adam.state[parameter]) for name, parameter in named.items()}
        parameters = {name: parameter.detach() for name, parameter in named.items()}
        return {**parameters, "optimizer": {"state": moments}, "step": step}

    def load(self, path) -> None:
        """Into tensors that are there already."""
        tree = self.state(0)
        dcp.load(tree, checkpoint_id=path, no_dist=True)
        for name, parameter in self.model.named().items():
            self.adam.state[parameter] = tree["optimizer"]["state"][name]


def job(name, folder, **more):
    config = make_config(SHAPE, NUM_STEPS, str(folder / name), **more)
    return msgspec.structs.replace(config, job=msgspec.structs.replace(config.job, verify=False))


def resumed(config, folder):
    section = msgspec.structs.replace(config.job, resume=str(folder))
    return msgspec.structs.replace(config, job=section)


def test_what_plain_dcp_saved_goes_on_as_a_job(fork_server, tmp_path):
    config = job("run", tmp_path)
    plain = PlainLoop(config)
    for step in range(SAVED_AT):
        plain.step(step)
    target = tmp_path / "plain" / "checkpoints" / f"step-{SAVED_AT}"
    dcp.save(plain.state(SAVED_AT), checkpoint_id=target, no_dist=True)
    result = run_job(prepare_job(resumed(config, tmp_path / "plain")), fork_server=fork_server)
    assert [step.step for step in result.steps] == list(range(SAVED_AT, NUM_STEPS))
    for step in result.steps:
        assert step.loss == pytest.approx(plain.step(step.step), rel=1e-9)


def test_what_a_job_saved_goes_on_as_a_plain_loop(fork_server, tmp_path):
    snapshot = SnapshotSection(every=1, max_cost=0, persist_every_steps=3, keep_latest_k=0)
    config = job("run", tmp_path, snapshot=snapshot)
    result = run_job(prepare_job(config), fork_server=fork_server)
    *_, found = list_checkpoints(tmp_path / "run" / "checkpoints")
    plain = PlainLoop(config)
    plain.step(0)  # so that the optimizer has its state
    plain.load(found.path)
    losses = {step.step: step.loss for step in result.steps}
    steps = range(found.version.step, NUM_STEPS)
    assert steps, "the oldest is of the middle of the run"
    for step in steps:
        assert plain.step(step) == pytest.approx(losses[step], rel=1e-9)
