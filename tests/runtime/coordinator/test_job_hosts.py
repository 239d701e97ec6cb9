"""The coordinator's part for hosts: one term at a time, and nothing decided without it."""

import asyncio
import random

import pytest

from holdfast.control.journal_entries import TermBegun
from holdfast.observe.run_clock import RunClock
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.job_sections import JobSection, NetSection
from holdfast.runtime.coordinator.dispatch import Dispatch
from holdfast.runtime.coordinator.job_hosts import JobHosts
from holdfast.runtime.launch.launcher_messages import CoordinatorSpec
from holdfast.runtime.rendezvous.rendezvous import (
    RunEnd,
    Superseded,
    announce_end,
    newest_coordinator,
    open_rendezvous,
)
from holdfast.runtime.wire.host_messages import Peer, Peers, Serving, TermInDoubt

ADDRESS = ("127.0.0.1", 4711)
WAIT_S = 20.0


@pytest.fixture
def spec(tmp_path):
    place = f"dir:{tmp_path / 'job'}"
    open_rendezvous(place, create=True)
    config = JobConfig(job=JobSection(steps=3), net=NetSection(rendezvous=place))

    def make(after_term: int = 0) -> CoordinatorSpec:
        return CoordinatorSpec(
            run_dir=str(tmp_path / "job"),
            secret="",
            config=config,
            plans=(),
            backend="gloo",
            clock=RunClock(0.0, 0.0),
            after_term=after_term,
        )

    return make


class Listening(Dispatch):
    def __init__(self) -> None:
        super().__init__()
        self.told: asyncio.Queue[TermInDoubt] = asyncio.Queue()

    def to_all(self, message) -> None:
        self.told.put_nowait(message)


class OneAgent:
    """(ServerConnection) What an agent is told."""

    def __init__(self) -> None:
        self.knows: dict[str, Peer] = {}

    def send(self, message) -> int:
        if isinstance(message, Peers):
            self.knows.update(message.addresses)
        return 0


def serving(node: str, agent: str = "a") -> Serving:
    return Serving(node=node, agent=agent, peer=Peer(host=node, port=1))


@pytest.mark.parametrize("seed", range(20))
def test_all_agents_learn_of_each_other_in_whatever_order_they_come(spec, seed) -> None:
    """Each says where it is, then what it has; what others say may come in between."""
    names = ["n0", "n1", "n2", "n3"]
    steps = [*names, *names]
    random.Random(seed).shuffle(steps)
    hosts, dispatch = JobHosts(spec(), ADDRESS), Dispatch()
    hosts._dispatch = dispatch
    agents = {name: OneAgent() for name in names}
    said: set[str] = set()
    for name in steps:
        if name not in said:
            said.add(name)
            hosts.introduce(serving(name))
        else:
            dispatch.connect(name, agents[name])
            hosts.tell_peers(agents[name])
    assert [sorted(agent.knows) for agent in agents.values()] == [names] * 4
    hosts.close()


@pytest.mark.parametrize("comes_back", ["", "a", "b"])
def test_a_node_that_is_back_while_it_was_looked_for_is_not_dead(spec, monkeypatch, comes_back):
    """The answer, that no process of its agent is there, is up to three seconds old."""
    hosts, dispatch, dead, begun = JobHosts(spec(), ADDRESS), Dispatch(), [], []
    hosts._dispatch, hosts._take, hosts._start = dispatch, dead.append, begun.append
    hosts.introduce(serving("n0"))

    async def is_refused(loop, host, port):
        if comes_back == "a":
            dispatch.connect("n0", OneAgent())
        elif comes_back:
            hosts.introduce(serving("n0", comes_back))
        return True

    monkeypatch.setattr("holdfast.runtime.coordinator.job_hosts.is_refused", is_refused)
    hosts.probe("n0")
    (probe,) = begun
    asyncio.run(probe)
    found = [(fact.node, fact.agent, fact.will_return) for fact in dead]
    assert found == ([] if comes_back else [("n0", "a", True)])
    hosts.close()


async def until_it_ends(hosts: JobHosts, meanwhile) -> list[Exception | None]:
    ended, reasons = asyncio.Event(), []

    def end(reason: Exception | None) -> None:
        reasons.append(reason)
        ended.set()

    keeping = asyncio.create_task(hosts.keep_term(end))
    async with asyncio.timeout(WAIT_S):
        await meanwhile()
        await ended.wait()
    keeping.cancel()
    hosts.close()
    return reasons


def test_a_term_is_taken_and_agents_are_told_where(spec, tmp_path) -> None:
    hosts = JobHosts(spec(), ADDRESS)
    assert hosts.term == 1
    assert (tmp_path / "job" / "address").read_text() == "127.0.0.1:4711\n"
    newest = newest_coordinator(open_rendezvous(spec().config.net.rendezvous))
    assert newest is not None
    assert (newest.term, newest.host, newest.port) == (1, *ADDRESS)
    with pytest.raises(Superseded, match="term 1 was taken"):
        JobHosts(spec(), ADDRESS)


def test_one_that_was_replaced_ends_and_records_nothing(spec) -> None:
    async def main() -> None:
        first = JobHosts(spec(), ADDRESS)
        first._dispatch = Listening()

        async def replace() -> None:
            JobHosts(spec(after_term=1), ADDRESS)

        (reason, *_) = await until_it_ends(first, replace)
        assert "term 2 was taken, this one has 1" in str(reason)
        first.journal.append(TermBegun(1))
        with pytest.raises(Superseded):
            first.journal.sync()

    asyncio.run(main())


def test_a_run_that_is_over_needs_no_coordinator(spec) -> None:
    async def main() -> None:
        hosts = JobHosts(spec(), ADDRESS)
        hosts._dispatch = Listening()

        async def end_it() -> None:
            place = open_rendezvous(spec().config.net.rendezvous)
            announce_end(place, RunEnd(run=1, outcome="stopped"))

        assert (await until_it_ends(hosts, end_it))[0] is None

    asyncio.run(main())


@pytest.mark.slow
def test_without_the_rendezvous_it_decides_nothing_and_says_so(spec, tmp_path) -> None:
    async def main() -> None:
        hosts = JobHosts(spec(), ADDRESS)
        hosts._dispatch = listening = Listening()

        async def take_it_away() -> None:
            (tmp_path / "job").rename(tmp_path / "away")
            assert await listening.told.get() == TermInDoubt(is_in_doubt=True)
            assert "No such file" in hosts.journal.sync()
            (tmp_path / "away").rename(tmp_path / "job")
            assert await listening.told.get() == TermInDoubt(is_in_doubt=False)
            assert hosts.journal.sync() == ""
            place = open_rendezvous(spec().config.net.rendezvous)
            announce_end(place, RunEnd(run=1, outcome="stopped"))

        await until_it_ends(hosts, take_it_away)

    asyncio.run(main())
