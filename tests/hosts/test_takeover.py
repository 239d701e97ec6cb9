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
from support.hosts import cluster, start_job

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


def test_the_host_of_the_coordinator_is_cut_off(hosts, tmp_path, undisturbed) -> None:
    """No FIN, no RST. The launcher is there all the while, and watches what goes on elsewhere."""
    shared = tmp_path / "shared"
    launcher, agents = start_job(hosts, write_job(tmp_path, unit_ms=SLOW), shared)
    wait_for_steps(shared, 8, launcher)
    hosts[0].cut()
    wait_for_term(shared, 2)
    hosts[0].mend()
    found = finish(launcher, agents, shared)
    assert_equal(found, undisturbed)
    assert_committed_once(found)
    assert terms(shared) == [2]
    assert not happened(shared, "WorkerLost")
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


def test_the_host_of_the_coordinator_hears_nothing(hosts, tmp_path, undisturbed) -> None:
    """A cut of one way: what it sends arrives, and it receives nothing."""
    shared = tmp_path / "shared"
    launcher, agents = start_job(hosts, write_job(tmp_path, unit_ms=SLOW), shared)
    wait_for_steps(shared, 8, launcher)
    hosts[0].deafen()
    wait_for_term(shared, 2)
    hosts[0].cure()
    found = finish(launcher, agents, shared)
    assert_equal(found, undisturbed)
    assert_committed_once(found)
    assert not happened(shared, "WorkerLost")


def test_the_link_of_the_coordinator_flaps(hosts, tmp_path, undisturbed) -> None:
    """Down for two steps and up for two, again and again: no step is lost or done twice."""
    shared = tmp_path / "shared"
    launcher, agents = start_job(hosts, write_job(tmp_path, unit_ms=SLOW), shared)
    wait_for_steps(shared, 6, launcher)
    for _ in range(4):
        for change in (hosts[0].cut, hosts[0].mend):
            change()
            pass_time(1.0)
    found = finish(launcher, agents, shared)
    assert_equal(found, undisturbed)
    assert_committed_once(found)
    assert not happened(shared, "WorkerLost")
