"""The rendezvous as one who looks at it again and again sees it."""

import asyncio
import threading

import msgspec

from holdfast.runtime.rendezvous.rendezvous import (
    ALIVE,
    RunEnd,
    SignOfLife,
    announce_end,
    open_rendezvous,
    take_term,
)
from holdfast.runtime.rendezvous.watch import RendezvousView, RendezvousWatch, look

WAIT_S = 20.0


def take(place, after: int) -> None:
    take_term(place, after, run=1, host="10.0.0.1", port=after + 1)


def test_the_newest_term_and_the_end(tmp_path) -> None:
    place = open_rendezvous(f"dir:{tmp_path / 'job'}", create=True)
    assert look(place, RendezvousView()) == RendezvousView()
    take(place, 0)
    take(place, 1)
    seen = look(place, RendezvousView())
    assert seen.newest is not None
    assert (seen.newest.term, seen.newest.port, seen.outcome) == (2, 2, "")
    announce_end(place, RunEnd(run=1, outcome="finished"))
    assert look(place, seen).outcome == "finished"


def test_a_place_that_is_away_says_nothing_new(tmp_path) -> None:
    place = open_rendezvous(f"dir:{tmp_path / 'job'}", create=True)
    take(place, 0)
    seen = look(place, RendezvousView())
    (tmp_path / "job").rename(tmp_path / "away")
    gone = look(place, seen)
    assert gone.newest == seen.newest
    assert "No such file" in gone.trouble
    (tmp_path / "job").mkdir()  # as where a file system is not mounted
    assert "term 1 was there, and is not" in look(place, seen).trouble
    (tmp_path / "job").rmdir()
    (tmp_path / "away").rename(tmp_path / "job")
    assert look(place, gone) == seen


def test_it_is_told_in_the_loop_and_a_place_that_hangs_is_noticed(tmp_path) -> None:
    place = open_rendezvous(f"dir:{tmp_path / 'job'}", create=True)
    take(place, 0)
    release, hangs = threading.Event(), threading.Event()

    class Hanging:
        def last(self, sequence: str) -> tuple[int, bytes]:
            if hangs.is_set():
                release.wait(WAIT_S)
            return place.last(sequence)

        def records(self, sequence: str, after: int = 0) -> list[bytes]:
            return place.records(sequence, after)

        def get(self, name: str) -> bytes:
            return place.get(name)

    async def watch() -> list[str]:
        told: asyncio.Queue[RendezvousView] = asyncio.Queue()
        watching = RendezvousWatch(Hanging(), told.put_nowait, every_s=0.01)
        watching.start()
        async with asyncio.timeout(WAIT_S):
            troubles = [(await told.get()).trouble]
            hangs.set()
            while not watching.view.trouble:
                await asyncio.sleep(0.05)
            troubles.append(watching.view.trouble)
            hangs.clear()
            release.set()
            while watching.view.trouble:
                await told.get()
        watching.stop()
        return troubles

    first, later = asyncio.run(watch())
    assert first == ""
    assert later.startswith("no answer for")


def test_a_coordinator_that_lives_says_how_many_nodes_it_hears(tmp_path) -> None:
    place = open_rendezvous(f"dir:{tmp_path / 'job'}", create=True)
    take(place, 0)
    take(place, 1)

    async def heard(life: SignOfLife) -> int:
        place.put(ALIVE, msgspec.json.encode(life))
        told: asyncio.Queue[RendezvousView] = asyncio.Queue()
        watching = RendezvousWatch(place, told.put_nowait, every_s=0.01)
        watching.start()
        async with asyncio.timeout(WAIT_S):
            await told.get()
        watching.stop()
        return watching.num_nodes_heard

    assert asyncio.run(heard(SignOfLife(term=2, count=1, num_nodes=3))) == 3
    assert asyncio.run(heard(SignOfLife(term=1, count=7, num_nodes=3))) == 0
