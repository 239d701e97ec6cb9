"""The rendezvous: a number is taken once."""

import stat
import threading

import pytest

from holdfast.errors import HoldfastError
from holdfast.runtime.rendezvous.directory import DirectoryRendezvous
from holdfast.runtime.rendezvous.rendezvous import (
    CoordinatorAddress,
    RunEnd,
    announce,
    announce_end,
    find_coordinator,
    how_ended,
    open_rendezvous,
)


@pytest.fixture
def place(tmp_path):
    return open_rendezvous(f"dir:{tmp_path / 'job'}", create=True)


def test_records_come_back_in_order(place) -> None:
    for number, record in enumerate((b"one", b"two", b"three"), 1):
        assert place.append("nodes", number, record)
    assert place.records("nodes") == [b"one", b"two", b"three"]
    assert place.records("nodes", after=2) == [b"three"]
    assert place.records("other") == []


def test_a_number_is_taken_once(place) -> None:
    assert place.append("coordinator", 1, b"first")
    assert not place.append("coordinator", 1, b"second")
    assert place.records("coordinator") == [b"first"]


def test_of_many_that_try_one_gets_the_number(tmp_path, place) -> None:
    won: list[tuple[int, int]] = []
    barrier = threading.Barrier(8)

    def take(who: int) -> None:
        own = DirectoryRendezvous(tmp_path / "job")
        barrier.wait()
        for number in range(1, 11):
            if own.append("coordinator", number, str(who).encode()):
                won.append((number, who))

    threads = [threading.Thread(target=take, args=(who,)) for who in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(number for number, _ in won) == list(range(1, 11))
    assert place.records("coordinator") == [str(who).encode() for _, who in sorted(won)]
    assert [path.name for path in (tmp_path / "job" / "coordinator").glob("*.part")] == []


def test_the_secret_is_for_its_owner_alone(tmp_path, place) -> None:
    assert place.secret() == ""
    place.keep_secret("s" * 32)
    place.keep_secret("t" * 32)
    assert place.secret() == "t" * 32
    assert stat.S_IMODE((tmp_path / "job" / "secret").stat().st_mode) == 0o600


def test_the_newest_coordinator_is_found_until_its_run_has_ended(place) -> None:
    assert find_coordinator(place) is None
    announce(place, CoordinatorAddress(run=1, host="10.0.0.1", port=1))
    announce(place, CoordinatorAddress(run=1, host="10.0.0.2", port=2))
    found = find_coordinator(place)
    assert found is not None
    assert (found.host, found.port) == ("10.0.0.2", 2)
    announce_end(place, RunEnd(run=1, outcome="stopped"))
    announce_end(place, RunEnd(run=1, outcome="failed"))
    assert find_coordinator(place) is None
    assert (how_ended(place, 1), how_ended(place, 2)) == ("stopped", "")
    announce(place, CoordinatorAddress(run=2, host="10.0.0.3", port=3))
    assert find_coordinator(place) == CoordinatorAddress(run=2, host="10.0.0.3", port=3)


@pytest.mark.parametrize("text", ["", "dir:", "/shared", "nfs://x"])
def test_what_is_no_rendezvous_is_refused(text) -> None:
    with pytest.raises(HoldfastError, match="expected dir:PATH"):
        open_rendezvous(text)


def test_an_agent_does_not_make_the_directory(tmp_path) -> None:
    with pytest.raises(HoldfastError, match="start `holdfast run` first"):
        open_rendezvous(f"dir:{tmp_path / 'job'}")
