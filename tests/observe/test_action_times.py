import pytest

from holdfast.observe.action_times import (
    APPLIED,
    BREAKS,
    TIMES,
    ActionList,
    TimesReader,
    last_whole_step,
    measured_workers,
    read_times,
)
from support.measured import LISTED, append, marks, write_times
from support.timelines import small_timeline


@pytest.fixture
def path(tmp_path):
    return tmp_path / TIMES / "n0.g0.jsonl"


def test_spans_have_no_holes(path, tmp_path):
    append(path, LISTED, marks(3, reductions=((2, 5, 22),)))
    (found,) = TimesReader(tmp_path, "n0.g0").read()
    kinds = ["F", "SF", "AGREE", "copy", "wait", "AGREE", "STEP"]
    assert [span.kind for span in found.spans] == kinds
    ends = [span.end_s for span in found.spans[:-1]]
    assert ends == [span.start_s for span in found.spans[1:]]
    assert found.start_s == pytest.approx(5.0003)
    assert found.end_s - found.start_s == pytest.approx(40e-6)
    assert found.seconds("F", "STEP") == pytest.approx(19e-6)
    assert [span.action for span in found.spans[3:5]] == ["AGREE", "AGREE"]
    assert (found.reductions[0].number, found.broken) == (2, False)


def test_a_step_that_broke_off(path, tmp_path):
    append(path, LISTED, marks(3, (0, 0, 1, 10, BREAKS, 15)))
    (found,) = TimesReader(tmp_path, "n0.g0").read()
    assert found.broken
    assert found.end_s - found.start_s == pytest.approx(15e-6)


def test_following_a_file_that_is_moved_aside(path, tmp_path):
    reader = TimesReader(tmp_path, "n0.g0")
    assert reader.read() == []
    append(path, LISTED, marks(0))
    assert [found.step for found in reader.read()] == [0]
    append(path, marks(1))
    path.rename(path.with_name(f"{path.name}.1"))
    append(path, LISTED, marks(2), marks(3))
    assert [found.step for found in reader.read()] == [1, 2, 3]
    append(path, *map(marks, range(4, 20)))
    assert [found.step for found in reader.newest(2)] == [18, 19]
    assert [found.step for found in TimesReader(tmp_path, "n0.g0").read(1, 4)] == [1, 2, 3]


def test_the_last_step_that_all_have_ended(tmp_path):
    timeline = small_timeline()
    write_times(timeline, tmp_path, range(4))
    late = tmp_path / TIMES / "n0.g0.jsonl"
    late.write_bytes(b"".join(late.read_bytes().splitlines(keepends=True)[:6]))
    assert measured_workers(tmp_path) == sorted(timeline.layout.plan.workers)
    last = last_whole_step(read_times(tmp_path, 0, 100))
    assert {found.step for found in last} == {2}
    assert len(last) == len(timeline.layout.plan.workers)
    assert last_whole_step({}) == []


def test_every_step_belongs_to_the_list_before_it(path, tmp_path):
    """The rest of a broken step has a list of its own, in the same epoch as those after it."""
    rest = ActionList(epoch=1, completes=True, actions="AGREE STEP")
    append(path, rest, marks(3, (0, 0, 1, 5, APPLIED, 9)), LISTED, marks(4))
    found = TimesReader(tmp_path, "n0.g0").newest(5)
    assert [(one.step, one.completes, one.spans[0].kind) for one in found] == [
        (3, True, "AGREE"),
        (4, False, "F"),
    ]
