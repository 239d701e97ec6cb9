import re
from html.parser import HTMLParser

from holdfast.observe.timeline_html import timeline_html
from holdfast.observe.timeline_view import Notes, view_of
from support.timelines import rerouted_plan, small_plan, small_timeline

VOID = {"meta", "rect", "path", "line"}


class Nesting(HTMLParser):
    """Fails unless every element is closed where it was opened."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)
        assert not any(name in ("src", "href") for name, _ in attrs)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data.strip())


def parsed(page: str) -> Nesting:
    nesting = Nesting()
    nesting.feed(page)
    assert nesting.open == []
    return nesting


def test_the_page_is_whole_and_alone():
    page = timeline_html(view_of(small_timeline(), Notes(costs="made up")))
    words = parsed(page).words
    assert {"iteration time", "33", "27.3 %", "made up", "r0.s1", "activations"} <= set(words)
    urls = set(re.findall(r"https?://[^\"\s]+", page))
    assert urls == {"http://www.w3.org/2000/svg"}
    assert "@import" not in page


def test_dark_screens_are_thought_of():
    page = timeline_html(view_of(small_timeline()))
    assert "prefers-color-scheme: dark" in page
    # The picture's own colours come first, or they would win.
    assert page.index(".paper { fill: #ffffff; }") < page.index(".paper { fill: #12161c; }")


def test_bars_can_be_followed():
    page = timeline_html(view_of(small_timeline()))
    assert page.count('data-m="3"') == 4 * 2
    assert "dataset.m" in page


def test_lost_rows_hidden_rows_and_the_path():
    lost = (small_plan().stage("r0.s1"),)
    timeline = small_timeline(rerouted_plan())
    page = timeline_html(view_of(timeline, Notes(lost=lost, critical=True)))
    words = parsed(page).words
    assert "lost" in words
    assert any(text.startswith("forward 0 on r0.s0 → ") for text in words)
    assert "more workers are not shown" in timeline_html(view_of(timeline, Notes(max_rows=2)))


def test_words_are_escaped():
    page = timeline_html(view_of(small_timeline(), Notes(title="<b>bold", costs="a < b")))
    assert "<b>bold" not in page
    assert "a &lt; b" in page
