import re
import xml.etree.ElementTree as ET

import pytest

from holdfast.observe.timeline_svg import (
    MARGIN,
    WIDTH,
    fit,
    frame_of,
    shade,
    text_width,
    timeline_svg,
    typeset,
)
from holdfast.observe.timeline_view import Bar, Notes, TimelineView, view_of
from holdfast.plan.profile import Link
from support.timelines import rerouted_plan, small_plan, small_timeline

SVG = "{http://www.w3.org/2000/svg}"


def picture(view: TimelineView) -> ET.Element:
    return ET.fromstring(timeline_svg(view))


def bars(root: ET.Element) -> list[ET.Element]:
    return [group for group in root.iter(f"{SVG}g") if "bar" in group.get("class", "")]


def texts(root: ET.Element) -> list[str]:
    return [text.text or "" for text in root.iter(f"{SVG}text")]


def test_every_computation_is_a_bar_with_its_number_and_story():
    root = picture(view_of(small_timeline()))
    found = bars(root)
    assert len(found) == 8 * 16
    assert all(bar.find(f"{SVG}text").text == bar.get("data-m") for bar in found)
    first = found[0].find(f"{SVG}title").text
    assert first == "forward of micro-batch 0 on r0.s0: 0 to 1"


def test_bars_are_where_their_times_are():
    view = view_of(small_timeline())
    frame = frame_of(view)
    drawn = iter(bars(picture(view)))
    for row in view.rows:
        for bar in row.bars:
            rect = next(drawn).find(f"{SVG}rect")
            assert float(rect.get("x")) == pytest.approx(frame.x(bar.start), abs=0.01)
            width = frame.x(bar.end) - frame.x(bar.start)
            assert float(rect.get("width")) == pytest.approx(width, abs=0.01)


def test_title_numbers_and_legend():
    words = texts(picture(view_of(small_timeline(), Notes(costs="made up"))))
    assert "2 replicas × 4 stages, 1F1B" in words
    assert any("iteration time 33" in text and "27.3 %" in text for text in words)
    assert any("8 per replica" in text for text in words)
    assert {"forward", "backward", "idle", "busy", "memory", "r0.s1", "n0.g1"} <= set(words)
    assert any(text.endswith("costs: made up") for text in words)
    assert "backward: weights" not in words


@pytest.mark.parametrize(
    "view",
    [
        view_of(small_timeline()),
        view_of(small_timeline(small_plan(replicas=40, micro_batches=320))),
        view_of(small_timeline(), Notes(title="a very long title " * 20, costs="because " * 60)),
        view_of(small_timeline(), Notes(slow={"n0.g1": 1.25})),
        view_of(small_timeline(small_plan(replicas=1, micro_batches=300))),
        view_of(small_timeline(), Notes(time_unit="ms")),
    ],
    ids=["plain", "merged", "long words", "slow", "narrow bars", "with a unit"],
)
def test_no_text_leaves_the_picture_or_its_bar(view):
    root = picture(view)
    for text in root.iter(f"{SVG}text"):
        width = text_width(text.text or "", float(text.get("font-size")))
        x = float(text.get("x"))
        anchor = text.get("text-anchor", "start")
        left = x - {"start": 0, "middle": width / 2, "end": width}.get(anchor, 0)
        if text.get("class"):  # numbers of bars are centred by their class
            assert left >= 0
            assert left + width <= WIDTH - MARGIN + 30
    for bar in bars(root):
        number, rect = bar.find(f"{SVG}text"), bar.find(f"{SVG}rect")
        if number is not None:
            needed = text_width(number.text, float(number.get("font-size")))
            assert needed <= float(rect.get("width")) + 2


def test_guests_have_an_outline_and_an_entry_in_the_legend():
    root = picture(view_of(small_timeline(rerouted_plan())))
    guests = [bar for bar in bars(root) if "guest" in bar.get("class")]
    assert len(guests) == 16
    assert "micro-batch of another replica" in texts(root)
    assert all("of another replica" in bar.find(f"{SVG}title").text for bar in guests)


def test_lost_and_slow_rows():
    lost = (small_plan().stage("r0.s1"),)
    view = view_of(small_timeline(rerouted_plan()), Notes(lost=lost, slow={"n0.g4": 2.0}))
    root = picture(view)
    assert texts(root).count("lost") == 2
    assert "2x slower" in texts(root)
    assert any(rect.get("class") == "lost" for rect in root.iter(f"{SVG}rect"))


def test_the_critical_path_is_a_line():
    view = view_of(small_timeline(slow={"r0.s1": 2.0}), Notes(critical=True))
    lines = [path for path in picture(view).iter(f"{SVG}path") if path.get("class") == "path"]
    along = max((path.get("d") for path in lines), key=len)
    assert along.count("M") == len(view.path)
    assert "critical path" in texts(picture(view))


def test_reductions_are_strips_below_the_bars():
    root = picture(view_of(small_timeline(reduce=Link(latency=0.5))))
    assert "reduce gradients" in texts(root)
    stories = [title.text for title in root.iter(f"{SVG}title")]
    assert any(story.startswith("reduce gradients on block.0") for story in stories)


def test_shades():
    assert shade(Bar(0, 1, "F")) == "#3b82c4"
    later = [shade(Bar(0, 1, "F", turn=turn)) for turn in range(6)]
    assert later == sorted(later)
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in later)


def test_fitting_words():
    assert fit("short", 10, 100) == "short"
    cut = fit("a long text that goes on", 10, 60)
    assert cut.endswith("…")
    assert text_width(cut, 10) <= 60
    assert typeset("2 replicas x 4 stages, 1f1b") == "2 replicas × 4 stages, 1F1B"


def test_words_are_escaped():
    root = picture(view_of(small_timeline(), Notes(title="<b>&", costs='"<script>"')))
    assert "<b>&" in texts(root)


def test_it_stays_small():
    assert len(timeline_svg(view_of(small_timeline()))) < 50_000
