import msgspec
import pytest

from holdfast.control.facts import NodeConnected, NodeLost, Tick, WorkerExited, WorkerTold
from holdfast.control.report import Member
from holdfast.control.state import WorkerState

MEMBER = Member("n0.g0", 1)


@pytest.mark.parametrize(
    "fact",
    [
        NodeConnected(
            node="n0", agent="a", places=("n0.g0",), workers=(WorkerState(member=MEMBER),)
        ),
        NodeLost("n0", "closed"),
        WorkerTold(WorkerState(member=MEMBER, epoch=4)),
        WorkerExited(MEMBER, "SIGKILL"),
        Tick(),
    ],
)
def test_facts_of_agents_travel(fact):
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(fact), type=type(fact)) == fact
