"""What Ray is asked for."""

import pytest

from holdfast.errors import HoldfastError
from holdfast.submit.ray import agent_command, bundles, entry_point, run_command
from holdfast.submit.request import SubmitRequest

REQUEST = SubmitRequest(
    name="big",
    num_nodes=2,
    num_spare_hosts=1,
    devices_per_node=8,
    is_cuda=True,
    program=("py", "-m", "holdfast"),
    job_file="/a b/job.toml",
    settings=("--steps", "3"),
    folder="/a b",
    interface="ib0",
    options=(("cpus", "4"), ("resource", "rack"), ("address", "http://h:8265")),
)


def test_every_host_reserves_its_devices():
    assert bundles(REQUEST) == [{"CPU": 4.0, "GPU": 8.0, "rack": 1.0}] * 3


def test_commands():
    agent = agent_command(REQUEST, "dir:/x", "/x/hosts/a", "a")
    assert agent[:8] == ["py", "-m", "holdfast", "agent", "--join", "dir:/x", "--label", "a"]
    assert agent[-2:] == ["--interface", "ib0"]
    run = run_command(REQUEST, "dir:/x", "/x")
    assert run[3:] == ["run", "/a b/job.toml", "--steps", "3", *run[-4:]]


def test_the_entry_point_keeps_what_was_asked_for():
    text = "--with=cpus=4 --with=resource=rack --spare-hosts 1 --steps 3"
    assert entry_point(REQUEST) == f"python -m holdfast.ray '/a b/job.toml' {text}"


def test_options_of_others_are_refused():
    with pytest.raises(HoldfastError, match="nothing else"):
        bundles(SubmitRequest(**{**_fields(), "options": (("time", "3"),)}))


def _fields() -> dict:
    return {name: getattr(REQUEST, name) for name in SubmitRequest.__struct_fields__}
