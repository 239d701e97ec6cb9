"""A real etcd as the rendezvous. Its rules are those of any: tests/runtime/rendezvous."""

import pytest

from holdfast.errors import HoldfastError
from holdfast.runtime.rendezvous.rendezvous import open_rendezvous
from support.etcd import etcd_command, running_etcd, why_no_etcd
from support.host_jobs import (
    assert_committed_once,
    assert_equal,
    finish_without_launcher,
    happened,
    pass_time,
    wait_for,
    wait_for_steps,
    write_job,
)
from support.hosts import cluster, start_job

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(900)]


@pytest.fixture
def etcd(tmp_path):
    if reason := why_no_etcd():
        pytest.skip(reason)
    with running_etcd(tmp_path) as found:
        yield found


def test_the_next_member_is_asked_if_the_first_is_away(etcd) -> None:
    both = open_rendezvous(f"etcd://127.0.0.1:1,{etcd.place}")
    assert both.append("nodes", 1, b"one")
    assert both.records("nodes") == [b"one"]


@pytest.fixture
def hosts(tmp_path):
    """One for the launcher, three that train, one for etcd."""
    if reason := why_no_etcd():
        pytest.skip(reason)
    with cluster(5, tmp_path) as found:
        yield found


def test_a_job_loses_its_launcher_and_etcd_is_started_again(hosts, tmp_path, undisturbed) -> None:
    """Nothing can be decided while etcd is away; then the coordinator is lost."""
    *others, keeper = hosts
    shared, address = tmp_path / "shared", f"{keeper.address}:2379"
    command = etcd_command(tmp_path / "etcd", keeper.address, 2379, 2380)
    keeper.start(*command, log="etcd.log")
    keeper.wait_until_listening(2379)
    job = write_job(tmp_path, unit_ms=30)
    launcher, agents = start_job(others, job, shared, place=f"etcd://{address}/job")
    wait_for_steps(shared, 6, launcher)
    keeper.lose()
    pass_time(5.0)
    keeper.back()
    keeper.start(*command, log="etcd.log")
    keeper.wait_until_listening(2379)
    hosts[0].lose()
    wait_for(lambda: happened(shared, "CoordinatorStarted"), "a successor")
    found = finish_without_launcher(agents, shared)
    assert_equal(found, undisturbed)
    assert_committed_once(found)
    assert not happened(shared, "WorkerLost")


@pytest.mark.parametrize("text", ["etcd://host:2379", "etcd:///job", "etcd://host:port/job"])
def test_what_names_no_place_is_refused(text) -> None:
    with pytest.raises(HoldfastError, match="etcd://"):
        open_rendezvous(text)
