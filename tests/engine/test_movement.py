"""State goes from worker to worker as the transition says, in checked chunks."""

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine import movement
from holdfast.engine.movement import (
    CorruptPiece,
    Scratch,
    carry_out,
    cut,
    digest,
    prepare_move,
)
from holdfast.engine.state import build_state, fresh_slices
from holdfast.errors import InternalError
from holdfast.models.model import LlamaModel
from holdfast.plan.build import regular_plan
from holdfast.plan.transfer_rounds import in_rounds
from holdfast.plan.transition import plan_transition
from holdfast.plan.units import box_size, intersect
from support.engine_parts import CPU, make_state
from support.engine_plans import make_plan, make_stage, named
from support.live_groups import live_members, run_together
from support.training import SMALL, TIED, Task

pytestmark = pytest.mark.process  # real connections

UNITS = Task().units


def value_at(piece, kind):
    """A number for every element of the whole tensor and kind, so that a wrong place shows."""
    axes = [torch.arange(low, high, dtype=torch.float64) for low, high in piece.box]
    base = 1000.0 * piece.kinds.index(kind) + sum(map(ord, piece.tensor))
    grid = torch.meshgrid(*axes, indexing="ij")
    return base + sum(axis / 100.0 ** (dim + 1) for dim, axis in enumerate(grid))


def numbered(plan, worker, shape):
    state = make_state(plan, worker, shape)
    for piece in state.slices.values():
        for kind in piece.kinds:
            piece.part(kind, piece.box).copy_(value_at(piece, kind))
    return state.slices


def move(old, new, shape=SMALL, wrap=lambda group, _: group, timeout_ms=10_000):
    """Every worker of both plans moves at once; (slices, bytes received) by worker."""
    transition = plan_transition(old, new)
    transition = msgspec.structs.replace(transition, moves=in_rounds(transition.moves))
    workers = tuple(dict.fromkeys((*old.workers, *new.workers)))
    model = LlamaModel(shape)

    def work(arguments):
        worker, group = arguments
        state = build_state(new, worker, model.build_unit, torch.float64, CPU)
        held = numbered(old, worker, shape)
        fresh = fresh_slices(state)
        scratch = prepare_move(transition, worker, held, fresh)
        return carry_out(transition, worker, wrap(group, worker), held, fresh, scratch), held

    with live_members(*workers, timeout_ms=timeout_ms) as members:
        groups = members.make("meeting", workers) if len(workers) > 1 else {workers[0]: None}
        given_ = {worker: (worker, groups[worker]) for worker in workers}
        return run_together(dict.fromkeys(workers, work), given_)


def regular(units=UNITS, first=0, **degrees):
    count = degrees.get("replicas", 1) * degrees.get("stages", 1) * degrees.get("tensor", 1)
    workers = named(*range(first, first + count))
    return regular_plan(units, micro_batches=4, workers=workers, **degrees)


TIED_UNITS = Task(shape=TIED).units
CASES = {
    "units split anew": (regular(stages=2), regular(stages=2, split=[4, 1]), SMALL),
    "tensor 2 to 3": (regular(tensor=2), regular(tensor=3), SMALL),
    "tensor 3 to 1": (regular(tensor=3), regular(), SMALL),
    "pipe to replicas": (regular(stages=2), regular(replicas=2), SMALL),
    "to other workers": (regular(stages=2), regular(first=2, tensor=2), SMALL),
    "tied": (
        regular(TIED_UNITS, stages=2),
        regular(TIED_UNITS, replicas=2, stages=2, split=[1, 4]),
        TIED,
    ),
    "degrees that differ": (
        regular(stages=2),
        make_plan(UNITS, [make_stage(0, 0, 0, 2, 1, 2), make_stage(0, 1, 2, 5, 0)], [4]),
        SMALL,
    ),
}


@pytest.mark.parametrize(("old", "new", "shape"), CASES.values(), ids=CASES.keys())
def test_everything_arrives_where_it_belongs(old, new, shape):
    transition = plan_transition(old, new)
    for worker, ((slices, num_bytes), _) in move(old, new, shape).items():
        expected = [m for m in transition.moves if m.target == worker]
        assert num_bytes == sum(box_size(m.box) for m in expected) * 3 * 8
        assert bool(slices) == (worker in new.seats)
        for piece in slices.values():
            for kind in piece.kinds:
                assert torch.equal(piece.part(kind, piece.box), value_at(piece, kind)), piece.tensor


def test_an_unchanged_slice_is_taken_over_as_it_is():
    results = move(regular(stages=2), regular(stages=2, split=[3, 2]))
    (slices, num_bytes), held = results["n0.g0"]
    assert num_bytes > 0
    kept = slices["block.0.wq"]
    before = held["block.0.wq"]
    assert kept.parameter.data_ptr() == before.parameter.data_ptr()
    assert kept.state["exp_avg"] is before.state["exp_avg"]
    assert kept.parameter is not before.parameter
    assert kept.parameter.requires_grad


def test_nothing_moves_where_nothing_changes():
    same = regular(replicas=2)
    for (_, num_bytes), _ in move(same, same).values():
        assert num_bytes == 0


def test_small_chunks_move_the_same(monkeypatch):
    monkeypatch.setattr(movement, "MESSAGE_BYTES", 999)
    test_everything_arrives_where_it_belongs(*CASES["tensor 2 to 3"])


class Counting:
    """A group that counts the messages of every pair."""

    def __init__(self, group, worker, sent):
        self._group, self._worker, self._sent = group, worker, sent

    def receive(self, tensor, source):
        return self._group.receive(tensor, source)

    def send(self, tensor, to):
        self._sent.append((self._worker, to, tensor.numel()))
        return self._group.send(tensor, to)


def count_messages(old, new, shape):
    sent = []
    move(old, new, shape, wrap=lambda group, worker: Counting(group, worker, sent))
    return sorted(sent)


@pytest.mark.parametrize(("old", "new", "shape"), CASES.values(), ids=CASES.keys())
def test_a_pair_needs_one_message(old, new, shape):
    """The smallest number there is, whatever the number of tensors that move."""
    moves = in_rounds(plan_transition(old, new).moves)
    sent = count_messages(old, new, shape)
    pairs = {(m.source, m.target) for m in moves}
    assert [(source, target) for source, target, _ in sent] == sorted(pairs)
    assert len(moves) > len(pairs)
    assert sum(size for *_, size in sent) == sum(box_size(m.box) * 24 for m in moves) + 8 * len(
        pairs
    )


def test_a_message_has_a_limit(monkeypatch):
    """Pieces are put together up to it, and no row of a tensor is above it here."""
    monkeypatch.setattr(movement, "MESSAGE_BYTES", 5000)
    old, new, shape = CASES["tensor 2 to 3"]
    sizes = [size - 8 for *_, size in count_messages(old, new, shape)]
    num_bytes = sum(box_size(m.box) * 24 for m in plan_transition(old, new).moves)
    assert max(sizes) <= 5000
    assert num_bytes / 5000 < len(sizes) < 3 * num_bytes / 5000


class Careless:
    """A group that flips a bit in the `victim`-th message it sends, in the byte `at`."""

    def __init__(self, group, victim, at):
        self._group, self._left, self._at = group, victim, at

    def receive(self, tensor, source):
        return self._group.receive(tensor, source)

    def send(self, tensor, to):
        if self._left == 0:
            tensor = tensor.clone()
            tensor[self._at] ^= 1
        self._left -= 1
        return self._group.send(tensor, to)


@pytest.mark.parametrize(
    ("victim", "at"), [(0, 5), (0, -8), (3, 5)], ids=["payload", "checksum", "a later payload"]
)
def test_a_corrupt_message_is_an_error_with_a_name(monkeypatch, victim, at):
    monkeypatch.setattr(movement, "MESSAGE_BYTES", 5000)
    old, new = regular(), regular(first=1)
    story = r"\w+ \[\d+:.*\](?: and \d+ more)? from n0.g0 to n0.g1: checksum \w+, sent \w+"
    with pytest.raises(CorruptPiece, match=story):
        # The sender learns of it by the end of its patience.
        move(old, new, wrap=lambda group, _: Careless(group, victim, at), timeout_ms=500)


def test_a_move_without_a_group_is_our_bug():
    old, new = regular(stages=2), regular(stages=2, split=[4, 1])
    state = build_state(new, "n0.g0", LlamaModel(SMALL).build_unit, torch.float64, CPU)
    held = numbered(old, "n0.g0", SMALL)
    with pytest.raises(InternalError, match=r"n0.g0 has a move but no group to move by"):
        carry_out(plan_transition(old, new), "n0.g0", None, held, fresh_slices(state), Scratch())


def test_room_for_messages_is_touched_before_and_what_is_kept_is_left_alone():
    old, new = regular(stages=2), regular(stages=2, split=[4, 1])
    transition = plan_transition(old, new)
    model = LlamaModel(SMALL)
    for worker in old.workers:
        held = numbered(old, worker, SMALL)
        fresh = fresh_slices(build_state(new, worker, model.build_unit, torch.float64, CPU))
        for piece in fresh.values():
            for kind in piece.kinds:
                piece.whole(kind).fill_(7.0)
        scratch = prepare_move(transition, worker, held, fresh)
        own = [move for move in transition.moves if worker in (move.source, move.target)]
        total = sum(move.num_bytes for move in own)
        assert total
        taken = [scratch.take(move.num_bytes + 8, CPU) for move in own]
        inside = {part.untyped_storage().data_ptr() for part in taken}
        assert len(inside) == 1, "all in one piece of memory"
        assert all(part.storage_offset() % 64 == 0 for part in taken)
        beyond = scratch.take(total, CPU)
        assert beyond.untyped_storage().data_ptr() not in inside
        for name, piece in fresh.items():
            is_kept = name in held and held[name].box == piece.box
            assert all(
                bool((piece.whole(kind) == (7.0 if is_kept else 0.0)).all()) for kind in piece.kinds
            )


def test_digest_sees_every_bit_and_fits_a_signed_integer():
    tensor = torch.arange(100, dtype=torch.float64)
    changed = tensor.clone()
    changed.view(torch.uint8)[799] ^= 1
    assert digest(tensor) == digest(tensor.clone())
    assert digest(tensor) != digest(changed)
    assert digest(tensor[::2]) == digest(tensor[::2].clone())
    assert all(0 <= digest(tensor * number) < 2**63 for number in range(50))


sizes = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 12)), min_size=1, max_size=3)


@given(sizes, st.integers(1, 40))
def test_cut_pieces_are_the_box(ends, most):
    box = tuple((low, low + size) for low, size in ends)
    pieces = list(cut(box, most))
    assert sum(map(box_size, pieces)) == box_size(box)
    for number, piece in enumerate(pieces):
        assert intersect(piece, box) == piece
        assert all(intersect(piece, other) is None for other in pieces[:number])
        row = box_size(piece) // (piece[0][1] - piece[0][0])
        assert box_size(piece) <= max(most, row)


def test_a_scalar_is_one_piece():
    assert list(cut((), 1)) == [()]
