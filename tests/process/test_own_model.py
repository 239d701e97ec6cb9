"""examples/own_model.py survives the faults of the demo, and ends equal to a run without them."""

import msgspec
import pytest

from holdfast.cli.demo_training import TOLERANCE, prove
from holdfast.observe.events import Event
from holdfast.runtime.config.settings import read_config
from holdfast.runtime.launch.fork_server import ForkServer
from holdfast.runtime.launch.launcher import run_job
from holdfast.runtime.launch.prepare import prepare_job
from tidy.source_tree import ROOT

MAX_LINES = 60


def test_it_is_short():
    assert len((ROOT / "examples" / "own_model.py").read_text().splitlines()) <= MAX_LINES


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.timeout(300)
def test_it_survives_and_ends_equal(tmp_path):
    config = read_config(ROOT / "examples" / "own_model.toml")
    events: list[Event] = []
    results = []
    with ForkServer() as fork_server:
        for name, faults in (("calm", ()), ("faults", config.faults)):
            job = msgspec.structs.replace(config.job, run_dir=str(tmp_path / name))
            own = msgspec.structs.replace(config, job=job, faults=faults)
            results.append(
                run_job(prepare_job(own), on_event=events.append, fork_server=fork_server)
            )
    proof = prove(*results, events, 0)
    assert (proof.faults, proof.steps_lost, proof.tokens_lost) == (len(config.faults), 0, 0)
    assert max(proof.loss_difference, proof.parameter_difference) <= TOLERANCE, proof
