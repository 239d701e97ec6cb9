from holdfast.control.facts import NodeConnected, NodeDead, NodeLost, WorkerExited
from holdfast.control.report import Member
from holdfast.control.state import WorkerState
from support.control_jobs import Job


def test_available_is_who_said_hello_is_newest_and_can_be_reached():
    job = Job().begin()
    state = job.coordinator._state
    assert state.available() == {"n0.g0": 1, "n1.g0": 1}
    job.take(NodeLost("n1"))
    assert state.available() == {"n0.g0": 1}


def test_a_silent_process_is_not_available():
    job = Job()
    state = WorkerState(member=Member("n0.g0", 1))
    job.take(NodeConnected(node="n0", agent="a", places=("n0.g0",), workers=(state,)))
    assert job.coordinator._state.available() == {}


def test_lost_for_good_is_gone_too_long_or_started_too_often():
    job = Job(max_restarts=0, lost_after_ms=100).begin()
    state = job.coordinator._state
    assert not state.is_lost_for_good("n0.g0")
    assert state.is_lost_for_good("n7.g0")
    job.take(WorkerExited(job.positions.pop("n0.g0").member, "SIGKILL"))
    assert state.is_lost_for_good("n0.g0")
    roomy = Job(lost_after_ms=100).begin()
    assert not roomy.coordinator._state.is_lost_for_good("n0.g0")
    roomy.take(NodeLost("n0"))
    roomy.tick(100)
    assert roomy.coordinator._state.is_lost_for_good("n0.g0")
    assert not roomy.coordinator._state.can_never_return("n0.g0")
    roomy.take(NodeDead("n0"))
    assert roomy.coordinator._state.can_never_return("n0.g0")
    roomy.take(NodeDead("n0", will_return=True))
    assert roomy.coordinator._state.is_lost_for_good("n0.g0")
    assert not roomy.coordinator._state.can_never_return("n0.g0")


def test_a_lost_node_counts_sooner_when_its_peers_have_lost_it_too():
    job = Job(settle_ms=50, lost_after_ms=1000).begin()
    state = job.coordinator._state
    job.take(NodeLost("n0"))
    state.now_ms = 60
    assert state.lost_nodes() == []
    state.status.broken[job.member("n1.g0")] = 0
    assert state.lost_nodes() == ["n0"]
