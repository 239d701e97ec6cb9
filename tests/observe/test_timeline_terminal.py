import io

import pytest
from rich.console import Console

from holdfast.observe.timeline_terminal import draw, num_columns
from holdfast.observe.timeline_view import Notes, TimelineView, view_of
from support.timelines import rerouted_plan, small_plan, small_timeline


def drawn(view: TimelineView, width: int = 120, **options) -> str:
    file = io.StringIO()
    draw(view, Console(file=file, width=width, highlight=False, _environ={}, **options))
    return file.getvalue()


def line(text: str, label: str) -> str:
    return next(row for row in text.splitlines() if row.startswith(label)).split()[-1]


def test_plain_1f1b():
    text = drawn(view_of(small_timeline(small_plan(replicas=1, stages=2, micro_batches=4))), 42)
    assert line(text, "r0.s0") == "F0F1····B0==F2B1==F3B2==··B3=="
    assert line(text, "r0.s1") == "··F0B0==F1B1==F2B2==F3B3==····"
    assert "F-- forward" in text
    assert "B== backward" in text
    assert "··· idle" in text


@pytest.mark.parametrize("width", [40, 80, 100, 133, 200])
@pytest.mark.parametrize("slow", [1.0, 1.3])
def test_it_fits_the_terminal(width, slow):
    text = drawn(view_of(small_timeline(slow={"r0.s1": slow})), width)
    chart = text.split("forward")[0].splitlines()
    assert max(map(len, chart)) <= width


def test_equal_bars_look_equal_where_that_is_possible():
    view = view_of(small_timeline())
    assert num_columns(view, 113) == 99
    assert num_columns(view, 66) == 66
    assert num_columns(view, 34) == 33


def test_odd_times_use_the_whole_width():
    assert num_columns(view_of(small_timeline(slow={"r0.s1": 1.237})), 113) == 113


def test_times_that_are_multiples_only_up_to_rounding():
    view = view_of(small_timeline(slow={"r0.s1": 1.1}))
    columns = num_columns(view, 400)
    assert columns % round(view.end * 10) == 0


def test_bars_shorter_than_a_character_keep_their_share_of_the_picture():
    view = view_of(small_timeline(small_plan(replicas=1, micro_batches=120)))
    row = line(drawn(view, 90), "r0.s3").strip("·")
    forward = sum(1 for sign in row if sign in "F-")
    backward = sum(1 for sign in row if sign in "B=")
    assert 1.6 < backward / forward < 2.4
    assert "shares of time" in drawn(view, 90)


def test_numbers_and_memory_are_below():
    text = drawn(view_of(small_timeline(small_plan(tensor=2)), Notes(costs="made up")))
    assert "16 micro-batches a step, 8 per replica" in text
    assert "27.3 %" in text
    assert "made up" in text
    assert "n0.g0-1 (2)" in text
    assert "MiB" in text


def test_guests_have_small_letters():
    text = drawn(view_of(small_timeline(rerouted_plan())))
    assert "f0" in line(text, "r1.s1")
    assert "f" not in line(text, "r1.s2")
    assert "small letters: of another replica" in text


def test_lost_rows_and_slow_rows_are_named():
    lost = (small_plan().stage("r0.s1"),)
    text = drawn(view_of(small_timeline(rerouted_plan()), Notes(lost=lost, slow={"n0.g4": 1.5})))
    assert "r0.s1 lost" in text
    assert "r1.s0 1.5x slower" in text


def test_merged_rows_say_how_many_and_long_lists_are_cut():
    text = drawn(view_of(small_timeline(small_plan(replicas=40, micro_batches=320))))
    assert "r0-39.s0 x 40" in text
    assert "... (40)" in text


def test_the_critical_path_is_visible_without_colours():
    text = drawn(view_of(small_timeline(slow={"r0.s1": 2.0}), Notes(critical=True)))
    assert "#" in line(text, "r0.s1")
    assert "###: critical path" in text


def test_hidden_rows_are_counted():
    assert "more workers are not drawn" in drawn(view_of(small_timeline(), Notes(max_rows=3)))


def test_colours():
    text = drawn(
        view_of(small_timeline(rerouted_plan()), Notes(critical=True)),
        force_terminal=True,
        color_system="truecolor",
    )
    assert "\x1b[" in text
    assert "pale: of another replica" in text
    assert "underlined: critical path" in text
    assert "F0-" not in text


def test_a_terminal_without_unicode():
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    draw(view_of(small_timeline()), Console(file=file, width=100, highlight=False, _environ={}))
    file.flush()
    assert b"F0F1F2F3...." in file.buffer.getvalue()


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero-bubble"])
def test_every_schedule_can_be_drawn(schedule):
    text = drawn(view_of(small_timeline(small_plan(schedule=schedule), optimizer=1.0)))
    assert "optimizer" in text
    assert ("W~~ backward: weights" in text) == (schedule == "zero-bubble")
