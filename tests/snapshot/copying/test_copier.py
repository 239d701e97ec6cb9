"""The copier: in gaps, at the end, never torn, never over what others need."""

import random
import threading

import pytest

from holdfast.errors import HoldfastError
from holdfast.snapshot.copying.copier import Copier
from holdfast.snapshot.memory.arena import Version
from support.held import held, new_since
from support.snapshot_parts import (
    Listening,
    as_bytes,
    content,
    make_arena,
    make_layout,
    make_state,
)

DEADLINE_S = 20
LAYOUT = make_layout({"a": 1000, "b": 500, "c": 20}, chunk_bytes=128)


@pytest.fixture
def parts(tmp_path):
    arena, others = make_arena(tmp_path, LAYOUT), Listening()
    copier = Copier(arena, others=others, chunk_bytes=100)
    yield arena, others, copier
    copier.stop()


def test_an_open_gate_lets_everything_through(parts) -> None:
    arena, others, copier = parts
    state = make_state(LAYOUT)
    copier.begin(Version(1, 0), state)
    copier.open()
    assert others.told.wait(DEADLINE_S)
    copier.close()
    assert content(arena, Version(1, 0)) == as_bytes(state)
    copier.finish()
    (report,) = copier.reports
    assert report.sealed
    assert report.bytes_in_gaps == 1520
    assert report.share_in_gaps == 1
    assert copier.rate > 0


def test_what_is_left_is_copied_before_the_update(parts) -> None:
    arena, others, copier = parts
    state = make_state(LAYOUT)
    copier.begin(Version(1, 0), state)
    copier.finish()
    assert content(arena, Version(1, 0)) == as_bytes(state)
    assert others.announced == [(Version(1, 0), True)]
    (report,) = copier.reports
    assert (report.bytes_in_gaps, report.bytes_outside) == (0, 1520)


def test_a_gate_opened_before_the_version_begins_serves_it_too(parts) -> None:
    _, others, copier = parts
    copier.open()
    copier.begin(Version(1, 0), make_state(LAYOUT))
    assert others.told.wait(DEADLINE_S)


def test_without_the_others_answer_a_version_is_given_up(parts) -> None:
    arena, others, copier = parts
    first = make_state(LAYOUT, 1)
    copier.begin(Version(1, 0), first)
    copier.finish()
    others.answers = False
    copier.begin(Version(2, 0), make_state(LAYOUT, 2))
    copier.finish()
    assert others.announced == [(Version(1, 0), True), (Version(2, 0), False)]
    others.answers = True
    third = make_state(LAYOUT, 3)
    copier.begin(Version(3, 0), third)
    copier.finish()
    assert content(arena, Version(1, 0)) == as_bytes(first)
    assert content(arena, Version(3, 0)) == as_bytes(third)


def test_abandoning_leaves_the_version_before(parts) -> None:
    arena, others, copier = parts
    state = make_state(LAYOUT)
    copier.begin(Version(1, 0), state)
    copier.finish()
    copier.begin(Version(2, 0), make_state(LAYOUT, 2))
    copier.abandon()
    assert not copier.is_busy
    assert arena.newest().version == Version(1, 0)
    assert arena.in_progress() is None
    assert others.announced[-1] == (Version(2, 0), False)


def test_a_missing_source_is_refused(parts) -> None:
    _, _, copier = parts
    state = make_state(LAYOUT)
    del state["b"]
    with pytest.raises(HoldfastError, match="'b' has no source"):
        copier.begin(Version(1, 0), state)


def test_a_mistake_in_the_thread_reaches_the_caller(parts) -> None:
    _, others, copier = parts
    failed = threading.Event()

    def announce(version, *, sealed):
        failed.set()
        raise OSError("no")

    others.announce = announce
    copier.begin(Version(1, 0), make_state(LAYOUT))
    copier.open()
    assert failed.wait(DEADLINE_S)
    copier.close()
    with pytest.raises(OSError, match="no"):
        copier.drain()


def test_stopping_ends_the_thread(tmp_path) -> None:
    before = held()
    copier = Copier(make_arena(tmp_path, LAYOUT))
    copier.begin(Version(1, 0), make_state(LAYOUT))
    copier.stop()
    assert [name for name in new_since(before) if name.startswith("thread")] == []


@pytest.mark.slow
@pytest.mark.parametrize("low_priority", [True, False])
def test_no_version_is_ever_torn(tmp_path, low_priority) -> None:
    """A loop that waits at random and changes all state between versions, as an update does."""
    layout = make_layout({"a": 200_000, "b": 70_000, "c": 5}, chunk_bytes=4096)
    arena, others = make_arena(tmp_path, layout), Listening()
    copier = Copier(arena, others=others, chunk_bytes=3000, low_priority=low_priority)
    numbers = random.Random(5)
    state = make_state(layout)
    pause = threading.Event()
    for step in range(1, 120):
        for tensor in state.values():
            tensor.add_(1)
        before = as_bytes(state)
        others.answers = numbers.random() < 0.9
        copier.begin(Version(step, 0), state)
        for _ in range(numbers.randint(0, 3)):
            copier.open()
            pause.wait(numbers.choice([0, 0.0001, 0.0005]))
            copier.close()
        copier.finish()
        # From here on state may change; what was sealed must not.
        version, sealed = others.announced[-1]
        assert version == Version(step, 0)
        for tensor in state.values():
            tensor.add_(3)
        if sealed:
            assert content(arena, version) == before
        else:
            assert arena.slot(version) is None
    copier.stop()
    inside = sum(report.bytes_in_gaps for report in copier.reports)
    outside = sum(report.bytes_outside for report in copier.reports)
    assert inside > 0
    assert outside > 0
