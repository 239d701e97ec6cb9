"""An agent that finds its coordinator at the rendezvous, and starts the next one when it has to."""

import asyncio
from contextlib import suppress

import pytest

from holdfast.control.succession import SuccessionSettings
from holdfast.observe.run_clock import RunClock
from holdfast.runtime.agent.agent import AgentSpec
from holdfast.runtime.agent.finding import FixedCoordinator
from holdfast.runtime.agent.peer_service import PeerService
from holdfast.runtime.agent.succeeding import SucceedingFinder
from holdfast.runtime.launch.fork_server import COORDINATOR, Exited, Forked
from holdfast.runtime.launch.launcher_messages import START, CoordinatorSpec
from holdfast.runtime.rendezvous.rendezvous import (
    RunEnd,
    announce_end,
    open_rendezvous,
    take_term,
)
from holdfast.runtime.wire.frames import Unpacker
from holdfast.runtime.wire.host_messages import ReachTold
from holdfast.runtime.wire.messages import Assignment
from holdfast.snapshot.memory.sources import NodeMemory

SECRET = "a secret of sixteen or more"
QUICK = SuccessionSettings(patience_ms=50, stagger_ms=0, alone_ms=100, start_ms=100)
WAIT_S = 20.0


class Forker:
    """Notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[tuple[str, CoordinatorSpec]] = asyncio.Queue()

    def fork(self, sock, log, *fds, role="") -> int:
        self.kept = sock.dup()
        asyncio.get_running_loop().add_reader(self.kept, self._read, role)
        return 7

    def _read(self, role: str) -> None:
        for message in Unpacker(START).feed(self.kept.recv(2**20)):
            self.asked.put_nowait((role, message.spec))
        asyncio.get_running_loop().remove_reader(self.kept)
        self.kept.close()


@pytest.fixture
def place(tmp_path):
    found = open_rendezvous(f"dir:{tmp_path / 'job'}", create=True)
    take_term(found, 0, run=1, host="127.0.0.1", port=9)
    return found


@pytest.fixture
def make(tiny_job, place, tmp_path):
    job = tiny_job()
    run = CoordinatorSpec(
        run_dir=str(tmp_path / "job"),
        secret="",
        config=job.config,
        plans=job.plans,
        backend="gloo",
        clock=RunClock(0.0, 0.0),
    )
    assignment = Assignment(
        worker="", config=job.config, store_host="", store_port=0, num_threads=1, final_dir=""
    )
    spec = AgentSpec(
        node="n0",
        agent="a",
        places=("n0.g0",),
        host="",
        port=0,
        secret=SECRET,
        heartbeat_ms=100,
        log_dir=str(tmp_path),
        assignment=assignment,
        serves="127.0.0.1",
    )
    return lambda forker: SucceedingFinder(spec, forker, place, run, QUICK)


async def peer(*, is_reached: bool, term: int) -> tuple[PeerService, object]:
    def reach() -> ReachTold:
        return ReachTold(is_reached=is_reached, term=term)

    service = PeerService(SECRET, lambda: NodeMemory("n1", ()), reach=reach)
    return service, await service.start("127.0.0.1")


def run(main) -> None:
    async def limited() -> None:
        async with asyncio.timeout(WAIT_S):
            await main()

    asyncio.run(limited())


def test_it_is_found_at_the_rendezvous(make, place) -> None:
    async def main() -> None:
        finder, left, over = make(Forker()), asyncio.Event(), asyncio.Event()
        finder.start(lambda why: left.set(), over.set)
        while finder.address() is None:
            await asyncio.sleep(0.01)
        assert finder.address() == ("127.0.0.1", 9)
        assert finder.connected(1)
        take_term(place, 1, run=1, host="127.0.0.1", port=10)
        left.clear()
        await left.wait()  # the coordinator of a lower term is left
        assert finder.address() == ("127.0.0.1", 10)
        assert not finder.connected(1)
        assert finder.connected(2)
        assert finder.reach() == ReachTold(is_reached=True, term=2)
        announce_end(place, RunEnd(run=1, outcome="finished"))
        await over.wait()
        await finder.close(is_job_over=False)

    run(main)


@pytest.mark.parametrize("is_reached", [True, False])
def test_the_others_are_asked_first(make, is_reached) -> None:
    async def main() -> None:
        forker = Forker()
        finder = make(forker)
        service, address = await peer(is_reached=is_reached, term=1)
        finder.learn({"n1": address})
        finder.start(lambda why: None, lambda: None)
        asked = asyncio.create_task(forker.asked.get())
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0 if is_reached else WAIT_S):
                role, job = await asked
        assert asked.cancelled() == is_reached
        if not is_reached:
            assert (role, job.term, job.secret) == (COORDINATOR, 2, SECRET)
            assert finder.handle_fork_notice(Forked(7, 99999999))
            assert not finder.handle_fork_notice(Forked(8, 1))
            assert finder.handle_fork_notice(Exited(7, 0))
        await finder.close(is_job_over=False)
        service.close()

    run(main)


def test_a_coordinator_in_doubt_is_missed(make) -> None:
    async def main() -> None:
        finder = make(Forker())
        assert finder.connected(1)
        finder.doubted(True)
        assert not finder.reach().is_reached
        finder.doubted(False)
        assert finder.reach() == ReachTold(is_reached=True, term=1)

    run(main)


def test_on_one_machine_it_is_where_it_was() -> None:
    async def main() -> None:
        finder = FixedCoordinator("127.0.0.1", 9)
        finder.start(lambda why: None, lambda: None)
        assert finder.address() == ("127.0.0.1", 9)
        assert finder.connected(2)
        finder.lost()
        assert not finder.connected(1)
        assert finder.connected(3)
        assert not finder.handle_fork_notice(Forked(1, 2))
        await finder.close(is_job_over=False)

    run(main)
