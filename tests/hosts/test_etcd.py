"""A real etcd as the rendezvous."""

import threading

import pytest

from holdfast.errors import HoldfastError
from holdfast.runtime.rendezvous.etcd import PAGE, EtcdRendezvous
from holdfast.runtime.rendezvous.rendezvous import (
    Superseded,
    newest_coordinator,
    open_rendezvous,
    take_term,
)
from support.etcd import Etcd, etcd_command, running_etcd, why_no_etcd
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


@pytest.fixture
def place(etcd: Etcd):
    return open_rendezvous(f"etcd://{etcd.place}")


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


def test_of_many_that_try_one_gets_the_number(etcd, place) -> None:
    won: list[tuple[int, int]] = []
    barrier = threading.Barrier(8)

    def take(who: int) -> None:
        own = EtcdRendezvous(etcd.place, answer_s=20.0)
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


def test_a_term_is_taken_once(place) -> None:
    first = take_term(place, 0, run=1, host="10.0.0.1", port=1)
    with pytest.raises(Superseded):
        take_term(place, 0, run=1, host="10.0.0.2", port=2)
    assert newest_coordinator(place) == first


def test_the_secret_and_other_values(place) -> None:
    assert place.get("alive") == b""
    for value in (b"1", b"2", b""):
        place.put("alive", value)
        assert place.get("alive") == value
    assert place.secret() == ""
    place.keep_secret("s" * 32)
    assert place.secret() == "s" * 32


def test_one_that_is_away_is_an_oserror_and_keeps_what_it_had(etcd, place) -> None:
    assert place.append("nodes", 1, b"one")
    etcd.stop()
    for ask in (place.records, place.last):
        with pytest.raises(OSError, match="etcd does not answer"):
            ask("nodes")
    etcd.start()
    assert place.records("nodes") == [b"one"]
    assert not place.append("nodes", 1, b"two")


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
