"""A run as the rendezvous keeps it."""

import socket

import msgspec
import pytest

from holdfast.errors import HoldfastError
from holdfast.observe.run_clock import RunClock
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.job_sections import JobSection
from holdfast.runtime.launch.launcher_messages import CoordinatorSpec
from holdfast.runtime.launch.run_record import (
    check_alone,
    keep_run,
    next_run,
    number_of_new_run,
    read_newest_run,
    read_run,
)
from holdfast.runtime.rendezvous.rendezvous import (
    RUNS,
    RunEnd,
    announce_end,
    open_rendezvous,
    take_term,
)


@pytest.fixture
def place(tmp_path):
    return open_rendezvous(f"dir:{tmp_path / 'job'}", create=True)


def spec(run: int = 1) -> CoordinatorSpec:
    return CoordinatorSpec(
        run_dir="/shared/job",
        secret="a secret of sixteen or more",
        config=JobConfig(job=JobSection(steps=3)),
        plans=(),
        backend="gloo",
        run=run,
        clock=RunClock(100.0, 7.0),
    )


def test_any_host_can_read_it_but_for_the_secret(place) -> None:
    assert next_run(place) == 1
    keep_run(place, spec())
    assert b"a secret" not in place.records(RUNS)[0]
    assert read_run(place, 1) == msgspec.structs.replace(spec(), secret="")
    assert next_run(place) == 2


def test_runs_before_on_one_machine_are_counted(place) -> None:
    keep_run(place, spec(run=3))
    assert read_run(place, 3).run == read_newest_run(place).run == 3
    assert next_run(place) == 4
    with pytest.raises(HoldfastError, match="no record of run 4"):
        read_run(place, 4)


def test_a_rendezvous_that_is_away_is_said(place, tmp_path) -> None:
    config = JobConfig(job=JobSection(steps=3))
    assert number_of_new_run(place, config) == 1
    (tmp_path / "job").rename(tmp_path / "away")
    with pytest.raises(HoldfastError, match=r"net.rendezvous = .* cannot be reached: .*No such"):
        number_of_new_run(place, config)


def test_of_two_launchers_one_begins(place) -> None:
    class Racing:
        def last(self, sequence):
            found = place.last(sequence)
            place.append(sequence, 1, b"of another")
            return found

        def append(self, *args):
            return place.append(*args)

    with pytest.raises(HoldfastError, match="begun by another launcher"):
        keep_run(Racing(), spec())


def test_a_job_that_answers_is_not_started_twice(place, tmp_path) -> None:
    config = JobConfig(job=JobSection(steps=3))
    place.keep_secret("a secret of sixteen or more")
    check_alone(place, config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        take_term(place, 0, run=1, host="127.0.0.1", port=port)
    check_alone(place, config)  # it does not answer any more
    announce_end(place, RunEnd(run=1, outcome="finished"))
    check_alone(place, config)
