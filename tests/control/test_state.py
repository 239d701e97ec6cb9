import msgspec

from holdfast.control.report import Member, WorkerReport
from holdfast.control.state import WorkerState


def test_a_state_travels_with_its_report():
    member = Member("n0.g0", 2)
    report = WorkerReport(
        member=member,
        round=7,
        epoch=3,
        version=5,
        base=3,
        sums={(0, 0, 1): (1, 2)},
        results=((1, 0),),
    )
    state = WorkerState(member=member, epoch=3, round=7, is_frozen=True, report=report)
    packed = msgspec.msgpack.encode(state)
    assert msgspec.msgpack.decode(packed, type=WorkerState) == state


def test_what_was_never_said_is_the_state_of_a_fresh_process():
    state = WorkerState(member=Member("n0.g0", 1))
    assert not state.said_hello
    assert (state.epoch, state.round, state.pending) == (0, 0, 0)
