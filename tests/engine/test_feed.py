"""What travels between a source and a joiner, without the rest."""

import queue
import threading

import torch

from holdfast.control.report import Outcome
from holdfast.engine.catch_up import CatchUp
from holdfast.engine.feed import (
    CHUNK_BYTES,
    RESULTS_PER_STEP,
    Buffer,
    Feeder,
    FeedHeader,
    chunks,
    fed_pieces,
    gradients_of,
    pack_header,
    state_of,
    unpack_header,
)
from holdfast.engine.optimizer import SliceOptimizer
from holdfast.plan.build import regular_plan
from support.engine_parts import make_state
from support.live_groups import crew
from support.training import TIED, Task

UNITS = Task().units
PAIR = regular_plan(UNITS, replicas=2, micro_batches=2)
TIED_STAGES = regular_plan(Task(shape=TIED).units, replicas=2, stages=2, micro_batches=2)


def outcome(step, applied=True):
    return Outcome(step, 1, 1.0, 8, 1.0, 0.5, applied)


def test_a_header_travels_as_it_is():
    header = FeedHeader(kind="result", units=(1, 2), version=7, outcome=outcome(7), checksum=2**62)
    assert unpack_header(pack_header(header)) == header


def test_large_payloads_go_in_chunks():
    flat = torch.zeros(CHUNK_BYTES // 2, dtype=torch.float64)
    assert [chunk.numel() for chunk in chunks(flat)] == [CHUNK_BYTES // 8] * 4


def test_every_tensor_of_a_joiner_is_given_once():
    pieces = fed_pieces(PAIR, "n0.g1")
    assert list(pieces) == [0, 1, 2, 3, 4]
    names = [name for found in pieces.values() for name, _ in found]
    assert sorted(names) == sorted(tensor.name for unit in UNITS for tensor in unit.tensors)


def test_a_tied_tensor_goes_with_the_unit_that_the_joiner_has():
    first, last = fed_pieces(TIED_STAGES, "n0.g2"), fed_pieces(TIED_STAGES, "n0.g3")
    tied = TIED_STAGES.units[0].tensors[0].name
    assert tied in [name for name, _ in first[0]]
    assert tied in [name for name, _ in last[4]]


def set_gradients(state, step):
    generator = torch.Generator().manual_seed(step)
    for piece in state.slices.values():
        shape = piece.parameter.shape
        piece.parameter.grad = torch.randn(shape, generator=generator, dtype=torch.float64)


class Source:
    """A worker that trains alone, with gradients out of thin air."""

    def __init__(self):
        self.state = make_state(PAIR, "n0.g0")
        self.optimizer = SliceOptimizer(Task().optimizer, self.state, 0)
        self.lock = threading.Lock()
        self.version = self.num_updates = 0

    def feeder(self, group, pieces, lineage=0):
        def where():
            return self.version, self.num_updates

        return Feeder(
            group, "n0.g1", pieces, self.state, lock=self.lock, where=where, lineage=lineage
        )

    def step(self, number, feeder=None, applied=True):
        with self.lock:
            set_gradients(self.state, number)
            told = outcome(number, applied)
            if applied:
                self.optimizer.apply(number, told)
            self.version, self.num_updates = number + 1, self.num_updates + applied
            if feeder is not None:
                feeder.give_result(told)


def feed_while_training(num_steps, skipped=()):
    """Source and joiner at work until the joiner is current; both states."""
    source, joiner = Source(), make_state(PAIR, "n0.g1")
    with crew("n0.g0", "n0.g1") as members:
        groups = members.make("feed", ("n0.g0", "n0.g1"))
        pieces = fed_pieces(PAIR, "n0.g1")
        catch_up = CatchUp(joiner, {"n0.g0": groups["n0.g1"]}, Task().optimizer, 3)
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
    for unit, pieces in fed_pieces(PAIR, "n0.g1").items():
        assert torch.equal(state_of(source.state, pieces), state_of(joiner, pieces)), unit


class SlowLink:
    """Sends nothing before it is told to, and notes what was sent."""

    def __init__(self):
        self.begun, self.go = threading.Event(), threading.Event()
        self.sent = queue.SimpleQueue()

    def send(self, tensor, peer):
        self.begun.set()
        assert self.go.wait(10)
        if tensor.dtype == torch.uint8:
            self.sent.put(unpack_header(tensor).kind)
        return self

    def receive(self, tensor, peer):
        return self

    def wait(self):
        pass


def test_what_has_piled_up_is_not_sent_in_one_burst():
    source, link = Source(), SlowLink()
    feeder = source.feeder(link, {0: fed_pieces(PAIR, "n0.g1")[0]})
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
    pieces = fed_pieces(PAIR, "n0.g1")[0]
    found = gradients_of(source.state, pieces)
    for (name, _), part in zip(pieces, found, strict=True):
        gradient = source.state.slices[name].parameter.grad
        assert torch.equal(part, gradient)
        assert part.data_ptr() == gradient.data_ptr(), "a view"


def test_a_joiner_that_is_gone_closes_its_feed_and_nothing_else():
    source = Source()
    with crew("n0.g0", "n0.g1") as members:
        groups = members.make("feed", ("n0.g0", "n0.g1"))
        pieces = fed_pieces(PAIR, "n0.g1")
        feeder = source.feeder(groups["n0.g0"], pieces)
        groups["n0.g1"].wake("dead")
        feeder.join(10)
        assert feeder.why_closed
        source.step(0, feeder)
        assert not feeder.is_current(1)


def test_memory_is_used_again():
    buffer, example = Buffer(), torch.empty(0, dtype=torch.float64)
    first = buffer.take(8, example)
    assert first.dtype == torch.float64
    assert buffer.take(4, example).data_ptr() == first.data_ptr()
    assert buffer.take(16, example).numel() == 16
