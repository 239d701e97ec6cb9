import socket
import struct

import msgspec
import pytest

from holdfast.control import facts
from holdfast.control.effects import Leave, Stop, Void
from holdfast.control.facts import NodeConnected, WorkerExited
from holdfast.control.message import Message
from holdfast.control.order import FullPlan, Joiner, Order, PlanWithout, SamePlan, Share
from holdfast.control.report import LOSS_ADDEND, Member, Outcome, WorkerReport
from holdfast.control.state import WorkerState
from holdfast.control.worker_reports import ChangeReport, RecoveryReport, StepReport
from holdfast.plan.feeding import UnitSource
from holdfast.plan.profile import Link, Profile, UnitCost
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.job_sections import JobSection
from holdfast.runtime.faults.kinds import Fault
from holdfast.runtime.wire import frames as wire
from holdfast.runtime.wire import messages
from holdfast.runtime.wire.frames import (
    BY_AGENT,
    BY_CLIENT,
    BY_WORKER,
    FROM_AGENT,
    FROM_CLIENT,
    FROM_WORKER,
    HANDSHAKE,
    Channel,
    Reader,
    Unpacker,
    WireError,
    pack,
)
from holdfast.runtime.wire.messages import (
    Assignment,
    Failed,
    FaultMessage,
    Finished,
    Hello,
    Measured,
)
from holdfast.snapshot.layout import Version
from holdfast.snapshot.manifest import HeldArena

MEMBER = Member("n0.g1", 2)
OUTCOME = Outcome(3, 1, 2.5, 64, 1.0, 0.5, True)
STATE = WorkerState(
    member=MEMBER,
    said_hello=True,
    round=4,
    is_frozen=True,
    blamed=("n1.g0",),
    report=WorkerReport(
        member=MEMBER,
        round=4,
        epoch=1,
        version=4,
        base=1,
        sums={(0, 1, 0): (0, 1), LOSS_ADDEND: (1,)},
        results=((0, 1),),
        outcome=OUTCOME,
    ),
)
ORDER = Order(
    number=4,
    kind="recover",
    plan=PlanWithout(1, ("n1.g0",)),
    incarnations={"n0.g1": 2},
    share=Share(step=4, base=1, keep=((0, 1),), recompute={(0, 1, 0): (2,)}),
)
CHANGE = Order(
    number=5,
    kind="change",
    plan=SamePlan(1),
    incarnations={"n0.g1": 2},
    joiners=(Joiner("n1.g0", {0: (UnitSource("n0.g1"), UnitSource("n0.g2", (1, 2, 0, 1)))}),),
)
TO_WORKER: list[Message] = [
    Assignment(
        worker="n0.g1",
        config=JobConfig(job=JobSection(steps=3)),
        store_host="127.0.0.1",
        store_port=1234,
        num_threads=1,
        final_dir="",
        faults=(Fault(kind="SEGFAULT", at_step=2, phase="agree"),),
    ),
    ORDER,
    CHANGE,
    msgspec.structs.replace(CHANGE, kind="start", plan=FullPlan("x")),
    messages.Freeze(4, "why"),
    Void(number=5),
    FaultMessage(fault=Fault(kind="SLOW", target="n0.g1", factor=3.0)),
    Stop(),
    Leave(),
]
MESSAGES: list[Message] = [
    Hello(pid=12),
    STATE,
    StepReport(3, 1, 0.5, 2.25, 1.0, 64, 1e-3, True, {"0/1": 2**62}),
    ChangeReport(3, 1, 0.25, 1000, 2, 3),
    RecoveryReport(3, 1, 0.25, 2, True),
    Measured(
        epoch=1,
        profile=Profile(unit={"head": UnitCost(1.0, 2.0, 3.0)}, tensor={2: 0.5}, reduce=Link(1.0)),
    ),
    Finished(epoch=1, next_step=4, staging_bytes=10, final_bytes=0),
    Failed(line="no", is_consequence=False),
]
FROM_AGENTS: list[Message] = [
    NodeConnected(
        node="n0",
        agent="abc",
        places=("n0.g0", "n0.g1"),
        workers=(STATE,),
        pids={"n0.g1": 7},
        arenas=(HeldArena("n0.g1", "ab12", (Version(3, 1),)),),
    ),
    facts.WorkerStarted(member=MEMBER, pid=7),
    WorkerExited(member=MEMBER, how="was killed by SIGKILL"),
    messages.Relayed(member=MEMBER, message=STATE),
    facts.Beat(node="n0", sent_ms=10**12, places={"n0.g1": facts.ProgressPlace(3, 4, 5, 6, True)}),
]
TO_AGENTS: list[Message] = [
    messages.StartWorker(member=MEMBER),
    messages.KillWorker(member=MEMBER, reason="fenced"),
    messages.ToMember(member=MEMBER, message=ORDER),
    messages.OrderForNode(order=b"o", since=3, gone=("n1.g0",), shares={"n0.g1": b"x"}),
    messages.InjectFault(fault=Fault(kind="NODE_LOSS", target="n0")),
    messages.EndNode(),
]


@pytest.mark.parametrize(
    ("reader", "sent"),
    [
        (BY_WORKER, TO_WORKER),
        (FROM_WORKER, MESSAGES),
        (FROM_AGENT, FROM_AGENTS),
        (BY_AGENT, TO_AGENTS),
        (
            FROM_CLIENT,
            [messages.StatusRequest(), messages.InjectRequest(fault=Fault(kind="SIGKILL"))],
        ),
        (BY_CLIENT, [messages.StatusReply(status=b"{}"), messages.Done(text="ok")]),
        (HANDSHAKE, [messages.Welcome(proof=b"p", term=3)]),
    ],
)
def test_every_message_comes_back_the_same(reader, sent):
    assert list(Unpacker(reader).feed(b"".join(map(pack, sent)))) == sent


def test_frames_may_arrive_in_any_pieces():
    unpacker, found = Unpacker(FROM_WORKER), []
    for byte in b"".join(map(pack, MESSAGES)):
        found += unpacker.feed(bytes([byte]))
    assert found == MESSAGES


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x80", b"\x81\xa4type\xa5Nobody", b"\x93\x01"])
def test_what_is_no_message_is_refused(body):
    with pytest.raises(WireError, match="not a message"):
        list(Unpacker(FROM_WORKER).feed(struct.pack(">I", len(body)) + body))


def test_what_is_deep_is_refused():
    body = b"\x91" * 100_000
    with pytest.raises(WireError, match="not a message"):
        list(Unpacker(FROM_WORKER).feed(struct.pack(">I", len(body)) + body))


def test_unknown_fields_are_refused():
    body = pack(Hello(pid=1))[4:].replace(b"\x82", b"\x83", 1) + b"\xa1x\x01"
    with pytest.raises(WireError, match="unknown field"):
        list(Unpacker(FROM_WORKER).feed(struct.pack(">I", len(body)) + body))


def test_each_side_says_only_what_is_its_own_to_say():
    with pytest.raises(WireError, match="not a message"):
        list(Unpacker(FROM_WORKER).feed(pack(Leave())))
    with pytest.raises(WireError, match="not a message"):
        list(Unpacker(FROM_AGENT).feed(pack(messages.InjectRequest(fault=Fault(kind="SIGKILL")))))


def test_a_frame_above_the_limit_is_refused_before_it_is_read(monkeypatch):
    with pytest.raises(WireError, match="a frame of 67108865 bytes; at most 67108864"):
        list(Unpacker(FROM_WORKER).feed(struct.pack(">I", wire.MAX_FRAME_BYTES + 1)))
    with pytest.raises(WireError, match="a frame of 1073741824 bytes; at most 1024"):
        list(Unpacker(HANDSHAKE).feed(struct.pack(">I", 2**30)))
    monkeypatch.setattr(wire, "MAX_FRAME_BYTES", 10)
    with pytest.raises(WireError, match="at most 10"):
        pack(TO_WORKER[0])


def test_a_channel_ends_when_its_other_side_does():
    ours, theirs = socket.socketpair()
    channel, other = Channel(ours, FROM_WORKER), Channel(theirs, BY_WORKER)
    channel.send(Stop())
    channel.send(Leave())
    channel.close()
    assert [other.receive(), other.receive(), other.receive()] == [
        Stop(),
        Leave(),
        None,
    ]
    other.close()


def test_a_reader_has_its_own_limit():
    with pytest.raises(WireError, match="at most 3 are allowed"):
        Reader(messages.FromWorker, 3).check(4)
