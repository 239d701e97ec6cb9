"""A host that joins: what it waits for, and what it is told when it waits in vain."""

import pytest

from holdfast.errors import HoldfastError
from holdfast.runtime.agent import join
from holdfast.runtime.agent.join import (
    JoinOptions,
    find_job,
    make_agent_spec,
    meet,
    wait_for_node,
)
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.job_sections import JobSection
from holdfast.runtime.rendezvous.rendezvous import (
    RunEnd,
    announce_end,
    open_rendezvous,
    take_term,
)
from holdfast.runtime.wire.host_messages import JoinRequest
from holdfast.runtime.wire.messages import Assignment, NodeGrant
from holdfast.runtime.wire.secret import ProofFailed

SECRET = "a secret of sixteen or more"


@pytest.fixture
def options(tmp_path, monkeypatch):
    monkeypatch.delenv("HOLDFAST_SECRET", raising=False)
    return JoinOptions(rendezvous=f"dir:{tmp_path / 'job'}", folder=tmp_path / "logs", wait_s=0.0)


def test_no_rendezvous_and_no_secret_are_said(options) -> None:
    with pytest.raises(HoldfastError, match="is not there: start `holdfast run` first; waited 0 s"):
        meet(options)
    place = open_rendezvous(options.rendezvous, create=True)
    with pytest.raises(HoldfastError, match=r"no secret at dir:.*HOLDFAST_SECRET is not set"):
        meet(options)
    place.keep_secret(SECRET)
    assert meet(options)[1] == SECRET


def test_a_secret_that_is_given_counts(options, monkeypatch) -> None:
    open_rendezvous(options.rendezvous, create=True).keep_secret(SECRET)
    monkeypatch.setenv("HOLDFAST_SECRET", "another one of sixteen")
    assert meet(options)[1] == "another one of sixteen"


def test_a_job_that_has_ended_is_not_joined(options) -> None:
    place = open_rendezvous(options.rendezvous, create=True)
    with pytest.raises(HoldfastError, match="no job has begun at dir:"):
        find_job(place, options)
    address = take_term(place, 0, run=1, host="127.0.0.1", port=9)
    assert find_job(place, options) == address
    announce_end(place, RunEnd(run=1, outcome="finished"))
    with pytest.raises(HoldfastError, match="no job has begun"):
        find_job(place, options)


def make_grant() -> NodeGrant:
    assignment = Assignment(
        worker="",
        config=JobConfig(job=JobSection(steps=1)),
        store_host="",
        store_port=0,
        num_threads=1,
        final_dir="",
        times="/elsewhere/times",
    )
    return NodeGrant(node="n1", places=("n1.g0",), heartbeat_ms=100, assignment=assignment)


def test_a_host_that_is_earlier_than_the_next_run_joins_it(options, monkeypatch) -> None:
    """A job that is queued again finds the secret and the coordinator of its last start."""
    place = open_rendezvous(options.rendezvous, create=True)
    place.keep_secret(SECRET)
    term = take_term(place, 0, run=1, host="127.0.0.1", port=9)

    async def ask(found, secret, request, cert):
        if secret == SECRET:
            take_term(place, term.term, run=2, host="127.0.0.1", port=10)
            place.keep_secret("the next run has another")
            raise ProofFailed("another secret")
        assert (found.run, found.port) == (2, 10)
        return make_grant()

    monkeypatch.setattr(join, "_ask", ask)
    monkeypatch.setattr(join, "_wait_or_give_up", lambda deadline, pause_s, why: None)
    request = JoinRequest(host="h0", address="127.0.0.1", node="", num_cores=1)
    seat = wait_for_node(place, options, SECRET, request, lambda line: None)
    assert (seat.grant.node, seat.run, seat.secret) == ("n1", 2, "the next run has another")


def test_what_a_host_keeps_stays_there(options, tmp_path) -> None:
    grant = make_grant()
    spec = make_agent_spec(grant, options, "127.0.0.1", SECRET)
    assert spec.log_dir == str(tmp_path / "logs" / "n1" / "logs")
    assert spec.assignment.times == str(tmp_path / "logs" / "n1" / "times")
    assert (spec.serves, spec.secret) == ("127.0.0.1", SECRET)
