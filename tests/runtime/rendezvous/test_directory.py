"""The rendezvous: a number is taken once."""

import stat
import threading

import pytest

from holdfast.errors import HoldfastError
from holdfast.runtime.rendezvous.directory import DirectoryRendezvous
from holdfast.runtime.rendezvous.rendezvous import (
    RunEnd,
    Superseded,
    announce_end,
    append_own,
    find_coordinator,
    how_ended,
    newest_coordinator,
    open_rendezvous,
    take_term,
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


def take(place, after: int, run: int = 1):
    return take_term(place, after, run=run, host="10.0.0.1", port=100 + after)


def test_the_newest_coordinator_is_found_until_its_run_has_ended(place) -> None:
    assert find_coordinator(place) is None
    assert newest_coordinator(place) is None
    take(place, 0)
    second = take(place, 1)
    assert (second.term, second.port) == (2, 101)
    assert find_coordinator(place) == second
    announce_end(place, RunEnd(run=1, outcome="stopped"))
    announce_end(place, RunEnd(run=1, outcome="failed"))
    assert find_coordinator(place) is None
    assert newest_coordinator(place) == second
    assert (how_ended(place, 1), how_ended(place, 2)) == ("stopped", "")
    third = take(place, 2, run=2)
    assert find_coordinator(place) == third


def test_a_term_is_taken_once(place) -> None:
    first = take(place, 0)
    with pytest.raises(Superseded, match="term 1 was taken"):
        take(place, 0)
    assert newest_coordinator(place) == first


def test_a_record_that_is_there_by_our_own_hand_is_ours(place) -> None:
    assert append_own(place, "coordinator", 1, b"mine")
    assert append_own(place, "coordinator", 1, b"mine")
    assert not append_own(place, "coordinator", 1, b"another")


def test_a_directory_that_is_away_is_not_an_empty_one(tmp_path, place) -> None:
    take(place, 0)
    assert place.last("nodes") == (0, b"")
    (tmp_path / "job").rename(tmp_path / "away")
    for ask in (place.records, place.last):
        with pytest.raises(FileNotFoundError):
            ask("coordinator")
    with pytest.raises(OSError, match="No such file"):
        place.append("coordinator", 2, b"")


@pytest.mark.parametrize("text", ["", "dir:", "/shared", "nfs://x"])
def test_what_is_no_rendezvous_is_refused(text) -> None:
    with pytest.raises(HoldfastError, match="expected dir:PATH"):
        open_rendezvous(text)


def test_an_agent_does_not_make_the_directory(tmp_path) -> None:
    with pytest.raises(HoldfastError, match="start `holdfast run` first"):
        open_rendezvous(f"dir:{tmp_path / 'job'}")
