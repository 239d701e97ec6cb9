import socket
import struct

import pytest

from holdfast.engine.trainer import ChangeReport, Planned, StepReport
from holdfast.job import wire
from holdfast.job.config import JobConfig, JobSection
from holdfast.job.wire import (
    Assignment,
    ChangeMessage,
    Channel,
    Failed,
    Finished,
    Hello,
    Leave,
    Measured,
    Ready,
    StepMessage,
    Stop,
    Unpacker,
    WireError,
    pack,
)
from holdfast.plan.build import regular_plan
from holdfast.plan.catalog import llama_shape, llama_units
from holdfast.plan.profile import Link, Profile, UnitCost

PLAN = regular_plan(llama_units(llama_shape("llama-tiny")), replicas=2, tensor=3)
MESSAGES = [
    Assignment(
        worker="n0.g1",
        config=JobConfig(job=JobSection(steps=3)),
        plans=(Planned(0, PLAN),),
        store_host="127.0.0.1",
        store_port=1234,
        num_threads=1,
        final_dir="",
    ),
    Stop(),
    Leave(),
    Hello(pid=12),
    Ready(),
    StepMessage(report=StepReport(3, 1, 0.5, 2.25, 1.0, 64, 1e-3, True, {"0/1": 2**62})),
    ChangeMessage(report=ChangeReport(3, 1, 0.25, 1000, 2, 3)),
    Measured(
        epoch=1,
        profile=Profile(unit={"head": UnitCost(1.0, 2.0, 3.0)}, tensor={2: 0.5}, reduce=Link(1.0)),
    ),
    Finished(epoch=1, next_step=4, staging_bytes=10, final_bytes=0),
    Failed(line="no", is_consequence=False),
]


def test_every_message_comes_back_the_same():
    data = b"".join(map(pack, MESSAGES))
    assert list(Unpacker().feed(data)) == MESSAGES


def test_frames_may_arrive_in_any_pieces():
    unpacker, found = Unpacker(), []
    for byte in b"".join(map(pack, MESSAGES[1:])):
        found += unpacker.feed(bytes([byte]))
    assert found == MESSAGES[1:]


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x80", b"\x81\xa4type\xa5Nobody", b"\x93\x01"])
def test_what_is_no_message_is_refused(body):
    with pytest.raises(WireError, match="not a message"):
        list(Unpacker().feed(struct.pack(">I", len(body)) + body))


def test_unknown_fields_are_refused():
    body = pack(Hello(pid=1))[4:].replace(b"\x82", b"\x83", 1) + b"\xa1x\x01"
    with pytest.raises(WireError, match="unknown field"):
        list(Unpacker().feed(struct.pack(">I", len(body)) + body))


def test_a_frame_above_the_limit_is_refused_before_it_is_read(monkeypatch):
    with pytest.raises(WireError, match="a frame of 67108865 bytes; at most 67108864"):
        list(Unpacker().feed(struct.pack(">I", wire.MAX_FRAME_BYTES + 1)))
    monkeypatch.setattr(wire, "MAX_FRAME_BYTES", 10)
    with pytest.raises(WireError, match="at most 10"):
        pack(MESSAGES[0])


def test_a_channel_ends_when_its_other_side_does():
    ours, theirs = socket.socketpair()
    channel, other = Channel(ours), Channel(theirs)
    channel.send(Stop())
    channel.send(Leave())
    channel.close()
    assert [other.receive() for _ in range(3)] == [Stop(), Leave(), None]
    other.close()
