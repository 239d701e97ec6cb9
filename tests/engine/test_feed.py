"""What travels between a source and a joiner, without the rest."""

import queue
import threading

import pytest
import torch

from holdfast.engine.catch_up import CatchUp
from holdfast.engine.feed import (
    CHUNK_BYTES,
    HEADER_BYTES,
    RESULTS_PER_STEP,
    Buffer,
    FeedHeader,
    chunks,
    pack_header,
    results_of,
    state_of,
    unpack_header,
)
from holdfast.engine.state import pack
from holdfast.plan.build import regular_plan
from holdfast.plan.feeding import needed_pieces
from support.engine_parts import make_state
from support.feeding import PAIR, Source, outcome, set_gradients
from support.live_groups import live_members
from support.training import TIED, Task

pytestmark = pytest.mark.process  # real connections

UNITS = Task().units
TIED_STAGES = regular_plan(Task(shape=TIED).units, replicas=2, stages=2, micro_batches=2)


def test_a_header_travels_as_it_is():
    header = FeedHeader(kind="result", units=(1, 2), version=7, outcome=outcome(7), checksum=2**62)
    assert unpack_header(pack_header(header)) == header


def test_large_payloads_go_in_chunks():
    flat = torch.zeros(CHUNK_BYTES // 2, dtype=torch.float64)
    assert [chunk.numel() for chunk in chunks(flat)] == [CHUNK_BYTES // 8] * 4


def test_every_tensor_of_a_joiner_is_given_once():
    pieces = needed_pieces(PAIR, "n0.g1")
    assert list(pieces) == [0, 1, 2, 3, 4]
    names = [tensor.name for found in pieces.values() for tensor, _ in found]
    assert sorted(names) == sorted(tensor.name for unit in UNITS for tensor in unit.tensors)


def test_a_tied_tensor_goes_with_the_unit_that_the_joiner_has():
    first, last = needed_pieces(TIED_STAGES, "n0.g2"), needed_pieces(TIED_STAGES, "n0.g3")
    tied = TIED_STAGES.units[0].tensors[0].name
    assert tied in [tensor.name for tensor, _ in first[0]]
    assert tied in [tensor.name for tensor, _ in last[4]]


def feed_while_training(num_steps, skipped=()):
    """Source and joiner at work until the joiner is current; both states."""
    source, joiner = Source(), make_state(PAIR, "n0.g1")
    with live_members("n0.g0", "n0.g1") as members:
        groups = members.make("feed", ("n0.g0", "n0.g1"))
        pieces = needed_pieces(PAIR, "n0.g1")
        catch_up = CatchUp(
            joiner, {"n0.g0": groups["n0.g1"]}, {"n0.g0": pieces}, Task().optimizer, 3
        )
        feeder = source.feeder(groups["n0.g0"], pieces, lineage=3)
        for step in range(num_steps):
            source.step(step, feeder, applied=step not in skipped)
        while not feeder.is_current(num_steps):
            assert not feeder.why_closed
            feeder.join(0.05)
            if not feeder.is_current(num_steps):
                source.step(num_steps, feeder)
                num_steps += 1
        # As in training: current in the agreement of a step, whose result goes before the switch.
        source.step(num_steps, feeder)
        feeder.switch(num_steps)
        while not catch_up.wait(1.0):
            pass
    return source, joiner, catch_up, num_steps + 1


def test_a_unit_once_given_stays_current_whatever_happens_meanwhile():
    source, joiner, catch_up, step = feed_while_training(8, skipped={2, 5})
    assert catch_up.version == step
    assert catch_up.outcome is not None
    assert catch_up.outcome.step == step - 1
    assert catch_up.num_updates == step - 2
    for unit, pieces in needed_pieces(PAIR, "n0.g1").items():
        assert torch.equal(pack(state_of(source.state, pieces)), pack(state_of(joiner, pieces))), (
            unit
        )


class SlowLink:
    """Sends nothing before it is told to, and notes what was sent."""

    def __init__(self):
        self.begun, self.go = threading.Event(), threading.Event()
        self.sent = queue.SimpleQueue()

    def send(self, tensor, peer):
        self.begun.set()
        assert self.go.wait(10)
        if tensor.numel() == HEADER_BYTES:
            self.sent.put(unpack_header(tensor).kind)
        return self

    def receive(self, tensor, peer):
        return self

    def wait(self):
        pass


def test_what_has_piled_up_is_not_sent_in_one_burst():
    source, link = Source(), SlowLink()
    feeder = source.feeder(link, {0: needed_pieces(PAIR, "n0.g1")[0]})
    assert link.begun.wait(10)
    for step in range(8):
        source.step(step, feeder)
    link.go.set()
    allowed = ["result"] * RESULTS_PER_STEP
    assert [link.sent.get(timeout=10) for _ in range(1 + len(allowed))] == ["state", *allowed]
    source.step(8, feeder)
    assert [link.sent.get(timeout=10) for _ in allowed] == allowed
    assert len(feeder._queue) == 9 - 2 * RESULTS_PER_STEP
    feeder.close("done")


def test_gradients_are_those_of_the_pieces():
    source = Source()
    set_gradients(source.state, 1)
    pieces = needed_pieces(PAIR, "n0.g1")[0]
    found = results_of(source.state, pieces)
    for (tensor, _), part in zip(pieces, found, strict=True):
        gradient = source.state.slices[tensor.name].parameter.grad
        assert torch.equal(part, gradient)
        assert part.data_ptr() == gradient.data_ptr(), "a view"


def test_a_joiner_that_is_gone_closes_its_feed_and_nothing_else():
    source = Source()
    with live_members("n0.g0", "n0.g1") as members:
        groups = members.make("feed", ("n0.g0", "n0.g1"))
        pieces = needed_pieces(PAIR, "n0.g1")
        feeder = source.feeder(groups["n0.g0"], pieces)
        groups["n0.g1"].wake("dead")
        feeder.join(10)
        assert feeder.why_closed
        source.step(0, feeder)
        assert not feeder.is_current(1)


def test_memory_is_used_again():
    buffer = Buffer()
    first = buffer.take(8)
    assert first.dtype == torch.uint8
    assert buffer.take(4).data_ptr() == first.data_ptr()
    assert buffer.take(16).numel() == 16
