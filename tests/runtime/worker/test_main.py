import os
import re
import socket

import msgspec
import pytest

from holdfast.engine.groups import GroupBroken
from holdfast.errors import HoldfastError
from holdfast.runtime.wire.messages import Assignment
from holdfast.runtime.worker.main import (
    explain_failure,
    pick_device,
    rank_variables,
    run_worker,
)


@pytest.fixture
def config(tiny_job):
    return tiny_job().config


def test_errors_in_one_line():
    told = explain_failure(HoldfastError("x.bin has token 300"))
    assert (told.line, told.is_consequence) == ("x.bin has token 300", False)
    assert explain_failure(ValueError("no\nmore")).line == "ValueError: no"
    assert explain_failure(GroupBroken("reduce group")).is_consequence


def test_errors_of_user_code_name_its_line():
    with pytest.raises(ValueError, match="four") as found:
        int("four")
    line = explain_failure(found.value).line
    assert re.search(r"'four' \(.*test_main.py:\d+\)$", line)


def test_an_agent_that_hangs_up_before_the_assignment():
    ours, theirs = socket.socketpair()
    ours.shutdown(socket.SHUT_WR)
    assert run_worker(theirs) == 1
    theirs.close()
    ours.close()


def assignment(config, **fields):
    return Assignment(
        worker="n0.g5",
        config=config,
        store_host="",
        store_port=0,
        num_threads=1,
        final_dir="",
        **fields,
    )


@pytest.mark.parametrize(
    ("worker", "devices_per_node", "expected"),
    [
        ("n0.g5", 8, {"RANK": "5", "LOCAL_RANK": "5", "LOCAL_WORLD_SIZE": "6", "GROUP_RANK": "0"}),
        ("n2.g1", 2, {"RANK": "5", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "2"}),
    ],
)
def test_user_code_finds_its_rank_as_under_torchrun(config, worker, devices_per_node, expected):
    parallel = msgspec.structs.replace(
        config.parallel, replicas=3, stages=2, devices_per_node=devices_per_node
    )
    given = assignment(msgspec.structs.replace(config, parallel=parallel))
    found = rank_variables(msgspec.structs.replace(given, worker=worker))
    assert found == expected | {"WORLD_SIZE": "6"}


@pytest.mark.parametrize(("num_workers_here", "host"), [(4, None), (6, "n0.g5")])
def test_the_device_of_a_worker(config, monkeypatch, num_workers_here, host):
    """Workers that share a device are hosts of their own to NCCL, which refuses them otherwise."""
    assert pick_device(assignment(config)) == "cpu"
    chosen = []
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    monkeypatch.setattr("torch.cuda.set_device", chosen.append)
    monkeypatch.setattr("os.environ", {})
    section = msgspec.structs.replace(config.job, device="cuda")
    on_device = msgspec.structs.replace(config, job=section)
    assert pick_device(assignment(on_device, num_workers_here=num_workers_here)) == "cuda:1"
    assert chosen == [1]
    assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"
    assert os.environ.get("NCCL_HOSTID") == host
