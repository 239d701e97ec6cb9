"""Hosts become nodes; who is which is kept at the rendezvous."""

import pytest

from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.job_sections import JobSection
from holdfast.runtime.coordinator.joining import START_MS, HostJoins
from holdfast.runtime.rendezvous.rendezvous import open_rendezvous
from holdfast.runtime.wire.host_messages import JoinRefused, JoinRequest
from holdfast.runtime.wire.messages import Assignment, NodeGrant

WORKERS = ("n0.g0", "n0.g1", "n1.g0", "n1.g1")


@pytest.fixture
def place(tmp_path):
    return open_rendezvous(f"dir:{tmp_path}", create=True)


def joining(place) -> HostJoins:
    template = Assignment(
        worker="",
        config=JobConfig(job=JobSection(steps=1)),
        store_host="",
        store_port=0,
        num_threads=1,
        final_dir="",
    )
    return HostJoins(place, WORKERS, 100, template, lambda text: None)


def request(host: str, node: str = "") -> JoinRequest:
    return JoinRequest(host=host, address=f"10.0.0.{ord(host)}", node=node, num_cores=8)


def node_of(answer) -> str:
    return answer.node if isinstance(answer, NodeGrant) else ""


def test_a_host_is_told_all_that_its_agent_needs(place) -> None:
    found = joining(place).answer(request("a"), (), 0)
    assert isinstance(found, NodeGrant)
    assert found.places == ("n0.g0", "n0.g1")
    assert found.assignment.config.job.host == "10.0.0.97"
    assert (found.assignment.num_threads, found.assignment.num_workers_here) == (4, 2)
    assert found.assignment.access is None  # its agent makes that up itself


def test_every_node_gets_one_host(place) -> None:
    nodes = joining(place)
    assert nodes.missing == ["n0", "n1"]
    assert node_of(nodes.answer(request("a"), (), 0)) == "n0"
    assert node_of(nodes.answer(request("b"), (), 0)) == "n1"
    assert nodes.missing == []
    refused = nodes.answer(request("c"), (), 0)
    assert isinstance(refused, JoinRefused)
    assert not refused.is_final


def test_a_successor_knows_who_is_which_node(place) -> None:
    first = joining(place)
    for host in "ab":
        first.answer(request(host), (), 0)
    assert node_of(joining(place).answer(request("b"), (), 0)) == "n1"
    assert len(place.records("nodes")) == 2


def test_a_host_that_never_comes_is_replaced(place) -> None:
    nodes = joining(place)
    for host in "ab":
        nodes.answer(request(host), (), 0)
    nodes.connected("n0")
    assert node_of(nodes.answer(request("c"), ("n0",), START_MS - 1)) == ""
    assert node_of(nodes.answer(request("c"), ("n0",), START_MS)) == "n1"


def test_one_that_gave_away_a_node_meanwhile_ends_this_one(place) -> None:
    nodes, other = joining(place), joining(place)
    other.answer(request("a"), (), 0)
    with pytest.raises(ConnectionAbortedError, match="another coordinator"):
        nodes.answer(request("b"), (), 0)
