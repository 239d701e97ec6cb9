"""No host of a job is indispensable: whichever has the coordinator may be lost or cut off, and the
run ends as the undisturbed one does, with every step committed once.
"""

from pathlib import Path

import pytest

from support.host_jobs import (
    assert_committed_once,
    assert_equal,
    finish,
    finish_without_launcher,
    happened,
    pass_time,
    steps_done,
    wait_for,
    wait_for_steps,
    write_job,
)
from support.hosts import Host, cluster, start_job

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(900)]

SLOW = 30
"""A step takes about half a second: there is time for a coordinator to be replaced."""


@pytest.fixture
def hosts(tmp_path):
    """One for the launcher, three that train."""
    with cluster(4, tmp_path) as found:
        yield found


def terms(shared: Path) -> list[int]:
    return [event.term for event in happened(shared, "CoordinatorStarted")]


def wait_for_term(shared: Path, term: int) -> None:
    wait_for(lambda: terms(shared)[-1:] >= [term], f"a coordinator of term {term}")


def test_the_launcher_is_killed(hosts, tmp_path, undisturbed) -> None:
    """And with it the coordinator: an agent starts the next one, no step is lost or stalled."""
    shared = tmp_path / "shared"
    launcher, agents = start_job(hosts, write_job(tmp_path, unit_ms=SLOW), shared)
    wait_for_steps(shared, 8, launcher)
    hosts[0].lose()
    wait_for_term(shared, 2)
    found = finish_without_launcher(agents, shared)
    assert_equal(found, undisturbed)
    assert_committed_once(found)
    assert terms(shared) == [2]
    assert not happened(shared, "WorkerLost")
    assert not happened(shared, "Recovered")


def test_a_worker_dies_together_with_the_launcher(hosts, tmp_path, undisturbed) -> None:
    """What the lost coordinator did not see is decided by the next one."""
    shared = tmp_path / "shared"
    fault = '[[faults]]\nkind = "SIGKILL"\ntarget = "n1.g0"\nat_step = 12\n'
    launcher, agents = start_job(hosts, write_job(tmp_path, fault, unit_ms=SLOW), shared)
    wait_for_steps(shared, 8, launcher)
    hosts[0].lose()
    found = finish_without_launcher(agents, shared)
    assert_equal(found, undisturbed)
    assert_committed_once(found)
    assert len(happened(shared, "WorkerLost")) == 1


def cut_off(host: Host, shared: Path) -> None:
    """No FIN, no RST."""
    host.cut()
    wait_for_term(shared, 2)
    host.mend()


def hear_nothing(host: Host, shared: Path) -> None:
    """A cut of one way: what it sends arrives, and it receives nothing."""
    host.deafen()
    wait_for_term(shared, 2)
    host.cure()


def flap(host: Host, shared: Path) -> None:
    """Down for two steps and up for two, again and again."""
    for _ in range(4):
        for change in (host.cut, host.mend):
            change()
            pass_time(1.0)


@pytest.mark.parametrize("disturb", [cut_off, hear_nothing, flap])
def test_the_host_of_the_coordinator_is_hard_to_reach(
    hosts, tmp_path, undisturbed, disturb
) -> None:
    """No step is lost or done twice. The launcher is there all the while; where another coordinator
    takes over, it watches what goes on elsewhere.
    """
    shared = tmp_path / "shared"
    launcher, agents = start_job(hosts, write_job(tmp_path, unit_ms=SLOW), shared)
    wait_for_steps(shared, 8, launcher)
    disturb(hosts[0], shared)
    found = finish(launcher, agents, shared)
    assert_equal(found, undisturbed)
    assert_committed_once(found)
    assert not happened(shared, "WorkerLost")
    if disturb is cut_off:
        assert terms(shared) == [2]
        assert "this command only watches" in launcher.text()


def test_a_host_that_trains_is_cut_off_with_the_coordinator_on_it(
    hosts, tmp_path, undisturbed
) -> None:
    """The others go on without it, under a coordinator of their own; it comes back by itself."""
    shared = tmp_path / "shared"
    launcher, agents = start_job(hosts, write_job(tmp_path, unit_ms=SLOW), shared)
    wait_for_steps(shared, 8, launcher)
    hosts[0].lose()
    wait_for_term(shared, 2)
    with_coordinator = next(h for h in hosts[1:] if list(h.folder.glob("n*/logs/coordinator.log")))
    with_coordinator.cut()
    wait_for_term(shared, 3)
    wait_for(lambda: happened(shared, "WorkerLost"), "a verdict")
    with_coordinator.mend()
    found = finish_without_launcher(agents, shared)
    assert_equal(found, undisturbed)
    assert_committed_once(found)


def test_the_rendezvous_is_gone_for_a_while(hosts, tmp_path, undisturbed) -> None:
    """Nothing can be decided, and nothing has to be: training goes on. Steps are recorded when it
    is back.
    """
    shared, away = tmp_path / "shared", tmp_path / "away"
    launcher, agents = start_job(hosts, write_job(tmp_path, unit_ms=2 * SLOW), shared)
    wait_for_steps(shared, 4, launcher)
    shared.rename(away)
    pass_time(30.0)
    assert steps_done(away) < 10
    away.rename(shared)
    found = finish(launcher, agents, shared)
    assert_equal(found, undisturbed)
    assert_committed_once(found)
    assert not happened(shared, "WorkerLost")
