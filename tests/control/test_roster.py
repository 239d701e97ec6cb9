from holdfast.control.facts import NodeConnected
from holdfast.control.report import Member
from holdfast.control.roster import Roster
from holdfast.control.state import WorkerState

ONE, TWO = Member("n0.g0", 1), Member("n0.g1", 1)


def connected(*members: Member, **fields) -> NodeConnected:
    workers = tuple(WorkerState(member=member, said_hello=True) for member in members)
    return NodeConnected(node="n0", agent="a", places=("n0.g0", "n0.g1"), workers=workers, **fields)


def test_who_is_not_named_on_connecting_has_vanished():
    roster = Roster()
    assert roster.connect(connected(ONE, TWO)) == []
    assert roster.connect(connected(TWO)) == [ONE]
    assert list(roster.states) == [TWO]
    assert list(roster.awake) == ["n0.g1"]


def test_a_lost_node_is_given_time():
    roster = Roster()
    roster.connect(connected(ONE))
    roster.lose("n0", 100)
    assert not roster.is_reachable(ONE)
    node = roster.nodes["n0"]
    assert not node.is_lost(149, 50)
    assert node.is_lost(150, 50)
    roster.connect(connected(ONE))
    assert roster.is_reachable(ONE)


def test_nodes_that_should_be_there_are_away_until_they_come():
    roster = Roster()
    roster.expect(["n0.g0", "n0.g1", "n1.g0"], 5)
    assert list(roster.away) == ["n0", "n1"]
    roster.connect(connected())
    assert list(roster.away) == ["n1"]


def test_starts_are_counted_within_a_window():
    roster = Roster()
    for at in (10, 20, 30):
        roster.started(Member("n0.g0", at), at)
    assert roster.starts_within("n0.g0", 20) == 2
    assert roster.starting["n0.g0"] == Member("n0.g0", 30)
    roster.told(WorkerState(member=Member("n0.g0", 30)))
    assert roster.starting == {}
