import pytest

from holdfast.control import effects
from holdfast.control.effects import Leave, StepsRecorded, Stop, Void
from holdfast.control.order import Freeze, Order, SamePlan, Share
from holdfast.control.report import Member
from holdfast.runtime.coordinator.dispatch import Dispatch
from holdfast.runtime.coordinator.order_deltas import OrderUnpacker
from holdfast.runtime.wire.frames import BY_AGENT, Unpacker
from holdfast.runtime.wire.messages import OrderForNode, ToMember

A, B, C = Member("n0.g0", 1), Member("n0.g1", 1), Member("n1.g0", 1)


class FakeConnection:
    def __init__(self):
        self.sent, self.is_hung_up = [], False

    def send(self, message):
        self.sent.append(message)
        return 10

    def send_packed(self, data):
        self.sent += Unpacker(BY_AGENT).feed(data)
        return len(data)

    def hang_up(self):
        self.is_hung_up = True


@pytest.fixture
def nodes():
    dispatch, ends = Dispatch(), {name: FakeConnection() for name in ("n0", "n1")}
    for name, end in ends.items():
        dispatch.connect(name, end)
    return dispatch, ends


def order(number: int, share: Share | None = None) -> Order:
    return Order(
        number=number,
        kind="recover",
        plan=SamePlan(1),
        incarnations={"n0.g0": 1, "n0.g1": 1, "n1.g0": 1},
        share=share,
    )


def test_words_for_workers_go_to_their_nodes(nodes):
    dispatch, ends = nodes
    dispatch.to_worker(A, Freeze(3, "why"))
    dispatch.to_worker(C, effects.Void(4, "why"))
    dispatch.to_worker(B, effects.Stop("SIGINT"))
    dispatch.to_worker(C, effects.Leave())
    assert [told.message for told in ends["n0"].sent] == [
        Freeze(3, "why"),
        Stop(reason="SIGINT"),
    ]
    assert ends["n1"].sent == [
        ToMember(member=C, message=Void(number=4, reason="why")),
        ToMember(member=C, message=Leave()),
    ]


def test_an_order_goes_to_each_node_once_with_every_share(nodes):
    dispatch, ends = nodes
    shares = {A: Share(step=1, base=1), B: Share(step=1, base=1, revert=True), C: None}
    for number in (1, 2):
        for member, share in shares.items():
            dispatch.to_worker(member, order(number, share))
        dispatch.flush()
    dispatch.flush()
    for name, members in (("n0", (A, B)), ("n1", (C,))):
        first, second = ends[name].sent
        assert isinstance(second, OrderForNode)
        assert (first.since, second.since) == (0, 1)
        agent = OrderUnpacker()
        agent.unpack(first)
        found = agent.unpack(second)
        assert found == {member.name: order(2, shares[member]) for member in members}


def test_the_newest_connection_counts(nodes):
    dispatch, ends = nodes
    newer = FakeConnection()
    dispatch.connect("n0", newer)
    assert ends["n0"].is_hung_up
    assert not dispatch.disconnect("n0", ends["n0"])
    dispatch.to_all(StepsRecorded(step=3))
    assert newer.sent == ends["n1"].sent == [StepsRecorded(step=3)]
    assert dispatch.disconnect("n0", newer)
    assert dispatch.nodes == ["n1"]
    assert not dispatch.to_node("n0", StepsRecorded(step=4))
    assert dispatch.num_bytes == 20
