"""Real kills in every phase of a step where each stage is held twice, and in mode `fast`.

A pipeline in which every worker also holds the stage of its successor, without computing it, loses
one worker after the other and equals the undisturbed run. In mode `fast` a broken step counts the
micro-batches that the coordinator wrote down, with the learning rate scaled by the square root of
their share: the plain loop of `reference/`, told the same, comes to the same losses and norms.
"""

from math import sqrt
from pathlib import Path

import msgspec
import pytest

from holdfast.control.journal_entries import JournalEntry, Ordered
from holdfast.engine.epoch import DTYPES
from holdfast.models.llama import initial_state
from holdfast.runtime.coordinator.control_journal import CONTROL
from holdfast.runtime.faults.kinds import Fault
from holdfast.runtime.launch.launcher import run_job
from holdfast.runtime.launch.prepare import prepare_job
from holdfast.runtime.worker.build import make_data
from reference.loop import Settings, train
from support.chaos import check_equal, left_behind, make_config, without_planner
from support.sample import some

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(120)]

NUM_STEPS = 18
PHASES = (
    ("reduce 2", "forward"),
    ("reduce 1", "message"),
    ("reduced", "backward"),
    ("agreed", "agree"),
    ("applied", "apply"),
)
"""Of two workers, one after the other."""


def kills(workers, phases):
    return tuple(
        Fault(kind="SIGKILL", target=worker, at_step=step, phase=phase)
        for worker, step, phase in zip(workers, (5, 14), phases, strict=True)
    )


@pytest.mark.parametrize(("first", "second"), some(PHASES, [PHASES[4]]))
def test_a_stage_that_is_held_twice(fork_server, undisturbed, tmp_path, first, second):
    faults = kills(("n1.g0", "n2.g0"), (first, second))
    shape = {"stages": 3, "redundancy": True}
    config = make_config(shape, NUM_STEPS, str(tmp_path / "run"), faults=faults)
    result = run_job(prepare_job(without_planner(config)), fork_server=fork_server)
    check_equal(undisturbed(NUM_STEPS), result, f"{first}, {second}")
    assert [recovery.lost for recovery in result.report.recoveries] == [("n1.g0",), ("n2.g0",)]
    assert result.report.restores == ()
    assert left_behind(fork_server, tmp_path) == []


def counted(run_dir):
    """Per step that was broken, the micro-batches that count in it."""
    decoder = msgspec.json.Decoder(JournalEntry)
    entries = [decoder.decode(line) for line in Path(run_dir, CONTROL).read_bytes().splitlines()]
    return {e.step: e.target for e in entries if isinstance(e, Ordered) and e.target}


def promised(config, targets):
    """The plain loop that leaves the same micro-batches out."""
    optimizer, data = config.optimizer, make_data(config, 6)
    everything = tuple(range(6))

    def batches(step):
        return [data.micro_batch(step, number) for number in targets.get(step, everything)]

    def rate(step):
        return optimizer.rate_at(step) * sqrt(len(targets.get(step, everything)) / 6)

    settings = Settings(
        learning_rate=rate,
        betas=optimizer.betas,
        eps=optimizer.eps,
        weight_decay=optimizer.weight_decay,
        clip_norm=optimizer.clip_limit,
    )
    shape = config.model.shape()
    state = initial_state(shape, config.job.seed, dtype=DTYPES[config.job.dtype])
    return train(shape, state, batches, config.job.steps, settings)


@pytest.mark.parametrize(("first", "second"), some(PHASES, [PHASES[0]]))
def test_mode_fast(fork_server, tmp_path, first, second):
    faults = kills(("n3.g0", "n4.g0"), (first, second))
    shape = {"replicas": 3, "stages": 2}
    config = make_config(shape, NUM_STEPS, str(tmp_path / "run"), faults=faults)
    recovery = msgspec.structs.replace(config.recovery, mode="fast", plan="reroute")
    config = msgspec.structs.replace(config, recovery=recovery)
    result = run_job(prepare_job(config), fork_server=fork_server)
    targets = counted(tmp_path / "run")
    expected = promised(config, targets)
    assert [step.step for step in result.steps] == list(range(NUM_STEPS))
    for step, loss, norm in zip(result.steps, expected.losses, expected.norms, strict=True):
        assert step.loss == pytest.approx(loss, rel=1e-9), (step.step, targets)
        assert step.norm == pytest.approx(norm, rel=1e-8), (step.step, targets)
    if (first, second) == ("reduce 2", "forward"):
        assert any(len(target) < 6 for target in targets.values()), "something is left out"
    assert left_behind(fork_server, tmp_path) == []
