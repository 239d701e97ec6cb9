"""A host keeps its node; only a node whose host is lost is given to another one."""

from typing import Any

from holdfast.control.seating import seat_host

NODES = ["n0", "n1", "n2"]


def seat(host: str, wanted: str = "", **given: Any) -> str:
    found = seat_host(
        host,
        wanted,
        nodes=NODES,
        claims=given.get("claims", {}),
        taken=given.get("taken", ()),
    )
    assert found.reason
    return found.node


def test_new_hosts_get_nodes_in_order() -> None:
    assert seat("a") == "n0"
    assert seat("b", claims={"n0": "a"}, taken=["n0"]) == "n1"


def test_a_host_that_is_back_is_the_node_it_was() -> None:
    claims = {"n0": "a", "n1": "b"}
    assert seat("b", claims=claims, taken=["n0"]) == "n1"


def test_a_second_agent_of_a_host_is_another_node() -> None:
    assert seat("a", claims={"n0": "a"}, taken=["n0"]) == "n1"


def test_a_free_node_goes_before_one_whose_host_is_lost() -> None:
    assert seat("c", claims={"n0": "a", "n1": "b"}, taken=["n1"]) == "n2"


def test_a_spare_host_takes_the_place_of_a_lost_one() -> None:
    claims = {"n0": "a", "n1": "b", "n2": "c"}
    assert seat("d", claims=claims, taken=["n0", "n2"]) == "n1"
    assert seat("d", claims=claims, taken=NODES) == ""


def test_a_host_may_ask_for_a_node() -> None:
    assert seat("a", "n2") == "n2"
    assert seat("a", "n2", claims={"n2": "b"}, taken=["n2"]) == ""
    assert seat("a", "n2", claims={"n2": "b"}) == "n2"
    refused = seat_host("a", "n7", nodes=NODES, claims={}, taken=())
    assert refused.is_final
    assert "n7" in refused.reason
