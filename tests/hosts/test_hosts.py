"""A job on three hosts that share nothing but the rendezvous: whatever happens to one of them, the
run ends as the one on a single machine does.
"""

from pathlib import Path

import pytest

from support.certificates import make_certificate
from support.host_jobs import (
    Outcome,
    assert_equal,
    finish,
    happened,
    run_plain,
    steps_done,
    wait_for,
    wait_for_steps,
    write_job,
)
from support.hosts import cluster, start_agent, start_job

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(900)]


@pytest.fixture
def hosts(tmp_path):
    """One for the launcher, three that train."""
    with cluster(4, tmp_path) as found:
        yield found


def is_protected(shared: Path) -> bool:
    """Against the loss of any host."""
    told = happened(shared, "ProtectionChanged")
    return bool(told) and any("node" in what for what in told[-1].against)


def test_three_hosts_train_as_one_machine_does(hosts, tmp_path, undisturbed) -> None:
    shared = tmp_path / "shared"
    launcher, agents = start_job(hosts, write_job(tmp_path), shared, "--nnodes", "3")
    assert_equal(finish(launcher, agents, shared), undisturbed)
    assert len(happened(shared, "HostJoined")) == 3
    assert [host.shared_memory() for host in hosts] == [[]] * 4
    for host in hosts[1:]:
        assert list(host.folder.glob("n*/logs/n*.g0.log"))
    assert sorted(path.name for path in (shared / "logs").glob("*.log")) == ["coordinator.log"]


def test_two_of_three_hosts_begin_and_the_third_joins_later(hosts, tmp_path, undisturbed) -> None:
    shared = tmp_path / "shared"
    elastic = ("--nnodes", "2:3", "--last_call_s", "0.5")
    launcher, agents = start_job(hosts[:3], write_job(tmp_path), shared, *elastic)
    wait_for_steps(shared, 3, launcher)
    assert len(happened(shared, "HostJoined")) == 2
    assert "begins without n2" in " ".join(event.reason for event in happened(shared, "Decided"))
    agents.append(start_agent(hosts[3], shared))
    assert_equal(finish(launcher, agents, shared), undisturbed)
    assert happened(shared, "PlanChanged")[0].joining == ("n2.g0",)


def test_all_of_it_over_tls_and_a_host_is_lost(hosts, tmp_path, undisturbed) -> None:
    shared, tls = tmp_path / "shared", make_certificate(tmp_path)
    files = ("--tls_cert", tls.cert, "--tls_key", tls.key)
    launcher, _ = start_job(hosts[:1], write_job(tmp_path), shared, *files)
    options = ("--tls-cert", tls.cert, "--tls-key", tls.key)
    agents = [start_agent(host, shared, *options) for host in hosts[1:]]
    wait_for_steps(shared, 8, launcher)
    hosts[2].lose()
    agents.pop(1)
    assert_equal(finish(launcher, agents, shared), undisturbed)


def test_a_worker_is_killed(hosts, tmp_path, undisturbed) -> None:
    shared = tmp_path / "shared"
    fault = '[[faults]]\nkind = "SIGKILL"\ntarget = "n1.g0"\nat_step = 10\n'
    launcher, agents = start_job(hosts, write_job(tmp_path, fault), shared)
    assert_equal(finish(launcher, agents, shared), undisturbed)
    assert len(happened(shared, "WorkerLost")) == 1
    assert happened(shared, "WorkerRestarted")


def test_a_host_is_lost_and_the_others_go_on(hosts, tmp_path, undisturbed) -> None:
    shared = tmp_path / "shared"
    launcher, agents = start_job(hosts, write_job(tmp_path), shared)
    wait_for_steps(shared, 8, launcher)
    hosts[2].lose()
    agents.pop(1)
    assert_equal(finish(launcher, agents, shared), undisturbed)
    assert happened(shared, "WorkerLost")


def test_a_host_is_cut_off_and_comes_back_by_itself(hosts, tmp_path, undisturbed) -> None:
    shared = tmp_path / "shared"
    launcher, agents = start_job(hosts, write_job(tmp_path), shared)
    wait_for_steps(shared, 8, launcher)
    hosts[3].cut()
    wait_for(lambda: happened(shared, "WorkerLost"), "a verdict")
    hosts[3].mend()
    assert_equal(finish(launcher, agents, shared), undisturbed)
    assert happened(shared, "PlanChanged")  # it trains again


def test_a_host_is_cut_off_by_a_fault_of_the_job_file(hosts, tmp_path, undisturbed) -> None:
    shared = tmp_path / "shared"
    fault = '[[faults]]\nkind = "HOST_CUT"\ntarget = "n2"\nat_step = 10\nduration_s = 20\n'
    launcher, agents = start_job(hosts, write_job(tmp_path, fault), shared)
    wait_for(lambda: any(host.drops() for host in hosts), "a cut")
    wait_for(lambda: happened(shared, "WorkerLost"), "a verdict")
    assert_equal(finish(launcher, agents, shared), undisturbed)
    assert [host.drops() for host in hosts] == [[]] * 4


def test_a_host_is_slow_by_a_fault_of_the_job_file(hosts, tmp_path, undisturbed) -> None:
    """A hundredth of an ordinary network: it is waited for, and not given up."""
    shared = tmp_path / "shared"
    fault = (
        '[[faults]]\nkind = "HOST_SLOW"\ntarget = "n2"\nat_step = 10\nduration_s = 10\n'
        "rate_mbit = 10\n"
    )
    launcher, agents = start_job(hosts, write_job(tmp_path, fault), shared)
    wait_for(lambda: any(host.is_slow() for host in hosts), "a slow host")
    assert_equal(finish(launcher, agents, shared), undisturbed)
    assert happened(shared, "WorkerLost") == []
    assert not any(host.is_slow() for host in hosts)


@pytest.fixture(scope="module")
def staged(tmp_path_factory) -> Outcome:
    """With stages instead of replicas: every host has state that no other one trains with."""
    return run_plain(tmp_path_factory.mktemp("staged"), replicas=1, stages=3)


def test_the_state_of_a_lost_host_comes_from_the_memory_of_others(hosts, tmp_path, staged) -> None:
    shared = tmp_path / "shared"
    job = write_job(tmp_path, replicas=1, stages=3, every=1)
    launcher, agents = start_job(hosts, job, shared)
    wait_for(lambda: is_protected(shared), "copies of a snapshot on other hosts")
    hosts[2].lose()
    agents.pop(1)
    hosts[2].back()
    agents.append(start_agent(hosts[2], shared))
    assert_equal(finish(launcher, agents, shared), staged)
    (restored,) = happened(shared, "Restored")
    assert restored.bytes_by_origin["peer memory"] > 0
    assert not restored.bytes_by_origin.get("storage")
    assert [host.shared_memory() for host in hosts] == [[]] * 4


def test_two_hosts_are_lost_one_after_the_other(hosts, tmp_path, staged) -> None:
    """Each time what it held comes from the memory of the others, and is protected again."""
    shared = tmp_path / "shared"
    job = write_job(tmp_path, replicas=1, stages=3, every=1, unit_ms=20)
    launcher, agents = start_job(hosts, job, shared)
    for number, lost in enumerate((hosts[2], hosts[3]), 1):
        # That protection is gone is told after a while only: some steps have to pass.
        wait_for_steps(shared, steps_done(shared) + 8, launcher)
        wait_for(lambda: is_protected(shared), "copies of a snapshot on other hosts")
        lost.lose()
        lost.back()
        agents.append(start_agent(lost, shared))
        wait_for(lambda n=number: len(happened(shared, "Restored")) == n, f"restore {number}")
    assert_equal(finish(launcher, [agents[0], *agents[3:]], shared), staged)
    for restored in happened(shared, "Restored"):
        assert restored.bytes_by_origin["peer memory"] > 0
        assert not restored.bytes_by_origin.get("storage")
