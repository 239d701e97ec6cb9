"""The rules of a rendezvous, whatever keeps it: a directory, or a real etcd (`make hosts`)."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from holdfast.runtime.rendezvous.etcd import PAGE
from holdfast.runtime.rendezvous.rendezvous import (
    Rendezvous,
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
from support.etcd import running_etcd, why_no_etcd


@dataclass
class Kept:
    """One that is kept somewhere, and may be away."""

    place: str
    leave: Callable[[], object]
    come_back: Callable[[], object]

    def open(self) -> Rendezvous:
        return open_rendezvous(self.place, create=True)


@pytest.fixture(params=["dir", pytest.param("etcd", marks=pytest.mark.hosts)])
def kept(request, tmp_path) -> Iterator[Kept]:
    if request.param == "dir":
        here, away = tmp_path / "job", tmp_path / "away"
        yield Kept(f"dir:{here}", lambda: here.rename(away), lambda: away.rename(here))
        return
    if reason := why_no_etcd():
        pytest.skip(reason)
    with running_etcd(tmp_path) as etcd:
        yield Kept(f"etcd://{etcd.place}", etcd.stop, etcd.start)


@pytest.fixture
def place(kept) -> Rendezvous:
    return kept.open()


def take(place, after: int, run: int = 1):
    return take_term(place, after, run=run, host="10.0.0.1", port=100 + after)


def test_records_come_back_in_order(place) -> None:
    written = [str(number).encode() for number in range(2 * PAGE + 3)]
    for number, record in enumerate(written, 1):
        assert place.append("nodes", number, record)
    assert place.append("node", 1, b"of another sequence")
    assert place.records("nodes") == written
    assert place.records("nodes", after=PAGE + 1) == written[PAGE + 1 :]
    assert place.last("nodes") == (len(written), written[-1])
    assert (place.records("other"), place.last("other")) == ([], (0, b""))
    assert place.has("nodes", len(written))
    assert not place.has("nodes", len(written) + 1)


def test_a_number_is_taken_once(place) -> None:
    assert place.append("coordinator", 1, b"first")
    assert not place.append("coordinator", 1, b"second")
    assert place.records("coordinator") == [b"first"]


def test_of_many_that_try_one_gets_the_number(kept, place) -> None:
    won: list[tuple[int, int]] = []
    barrier = threading.Barrier(8)

    def try_all(who: int) -> None:
        own = kept.open()
        barrier.wait()
        for number in range(1, 11):
            if own.append("coordinator", number, str(who).encode()):
                won.append((number, who))

    threads = [threading.Thread(target=try_all, args=(who,)) for who in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(number for number, _ in won) == list(range(1, 11))
    assert place.records("coordinator") == [str(who).encode() for _, who in sorted(won)]


def test_a_term_is_taken_once(place) -> None:
    first = take(place, 0)
    with pytest.raises(Superseded, match="term 1 was taken"):
        take(place, 0)
    assert newest_coordinator(place) == first


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


def test_a_record_that_is_there_by_our_own_hand_is_ours(place) -> None:
    assert append_own(place, "coordinator", 1, b"mine")
    assert append_own(place, "coordinator", 1, b"mine")
    assert not append_own(place, "coordinator", 1, b"another")


def test_the_secret_and_other_values(place) -> None:
    assert place.get("alive") == b""
    for value in (b"1", b"2", b""):
        place.put("alive", value)
        assert place.get("alive") == value
    assert place.secret() == ""
    for secret in ("s" * 32, "t" * 32):
        place.keep_secret(secret)
        assert place.secret() == secret


def test_one_that_is_away_is_not_an_empty_one_and_keeps_what_it_had(kept, place) -> None:
    assert place.append("nodes", 1, b"one")
    kept.leave()
    for ask in (place.records, place.last):
        with pytest.raises(OSError, match=r"No such file|does not answer"):
            ask("nodes")
    with pytest.raises(OSError, match=r"No such file|does not answer"):
        place.append("nodes", 2, b"")
    kept.come_back()
    assert place.records("nodes") == [b"one"]
    assert not place.append("nodes", 1, b"two")
