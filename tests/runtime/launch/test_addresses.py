"""Which address the other hosts use."""

import pytest

from holdfast.errors import HoldfastError
from holdfast.runtime.launch import addresses
from holdfast.runtime.launch.addresses import own_address


def test_what_is_said_is_taken() -> None:
    assert own_address("127.0.0.5") == "127.0.0.5"
    assert own_address(interface="lo") == "127.0.0.1"


def test_an_interface_that_is_not_there_is_refused() -> None:
    with pytest.raises(HoldfastError, match=r"net.interface = 'nope0'.*\(lo\)"):
        own_address(interface="nope0")


@pytest.mark.parametrize(
    ("found", "named", "address"),
    [
        ({"lo": "127.0.0.1"}, "127.0.1.1", "127.0.0.1"),
        ({"lo": "127.0.0.1", "eth0": "10.0.0.2"}, "127.0.1.1", "10.0.0.2"),
        ({"lo": "127.0.0.1", "eth0": "10.0.0.2", "ib0": "10.1.0.2"}, "10.1.0.2", "10.1.0.2"),
    ],
)
def test_otherwise_it_is_the_only_one_or_that_of_the_name(monkeypatch, found, named, address):
    monkeypatch.setattr(addresses, "addresses", lambda: found)
    monkeypatch.setattr(addresses, "_by_name", lambda: named)
    assert own_address() == address


def test_two_that_may_be_meant_are_refused(monkeypatch) -> None:
    found = {"eth0": "10.0.0.2", "ib0": "10.1.0.2"}
    monkeypatch.setattr(addresses, "addresses", lambda: found)
    monkeypatch.setattr(addresses, "_by_name", lambda: "")
    with pytest.raises(HoldfastError, match=r"10.0.0.2 \(eth0\), 10.1.0.2 \(ib0\)"):
        own_address()
