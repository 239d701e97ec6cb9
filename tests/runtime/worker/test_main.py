import socket

import msgspec
import pytest

from holdfast.engine.groups import GroupBroken
from holdfast.errors import HoldfastError
from holdfast.runtime.worker.main import explain_failure, pick_device, run_worker


@pytest.fixture
def config(tiny_job):
    return tiny_job().config


def test_errors_in_one_line():
    told = explain_failure(HoldfastError("x.bin has token 300"))
    assert (told.line, told.is_consequence) == ("x.bin has token 300", False)
    assert explain_failure(ValueError("no\nmore")).line == "ValueError: no"
    assert explain_failure(GroupBroken("reduce group")).is_consequence


def test_an_agent_that_hangs_up_before_the_assignment():
    ours, theirs = socket.socketpair()
    ours.shutdown(socket.SHUT_WR)
    assert run_worker(theirs) == 1
    theirs.close()
    ours.close()


def test_the_device_of_a_worker(config, monkeypatch):
    assert pick_device(config, "n0.g5") == "cpu"
    chosen = []
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    monkeypatch.setattr("torch.cuda.set_device", chosen.append)
    section = msgspec.structs.replace(config.job, device="cuda")
    assert pick_device(msgspec.structs.replace(config, job=section), "n0.g5") == "cuda:1"
    assert chosen == [1]
