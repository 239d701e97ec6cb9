"""Charts are well-formed pictures of what they are given."""

import xml.etree.ElementTree as ET

import pytest

from holdfast.observe.goodput import BUCKET_OF
from holdfast.observe.simulation_charts import (
    CAUSE_COLOURS,
    budget_chart,
    line_chart,
    percent_ticks,
    spread_out,
    throughput_chart,
)


def texts(svg: str) -> list[str]:
    return [node.text for node in ET.fromstring(svg).iter("text")]


def test_every_cause_has_a_colour():
    assert set(CAUSE_COLOURS) == set(BUCKET_OF) | {"productive"}
    assert len(set(CAUSE_COLOURS.values())) == len(CAUSE_COLOURS)


def test_throughput_rows_mark_failures_in_range():
    spans = ((0.0, 1.0, 1.0), (1.0, 1.5, 0.0), (1.5, 4.0, 0.5))
    svg = throughput_chart([("a < b", "50 %", spans)], (0.5, 1.0, 9.0), 0.0, 4.0)
    assert {"a < b", "50 %", "failures"} <= set(texts(svg))
    lines = [node.get("class") for node in ET.fromstring(svg).iter("line")]
    assert lines.count("fail") == 2
    closer = throughput_chart([("x", "", spans)], (), 1.0, 2.0)
    assert "1 h" in texts(closer)


def test_bars_are_as_long_as_their_share():
    svg = budget_chart([("p", 0.75, {"detection": 0.25})])
    widths = [float(node.get("width")) for node in ET.fromstring(svg).iter("rect")]
    assert widths[0] / widths[1] == 3.0
    assert {"p", "75.0 %", "detection", "productive"} <= set(texts(svg))
    assert "saving" not in texts(svg)


def test_lines_end_with_their_names():
    svg = line_chart([("a", ((1.0, 0.5), (10.0, 0.9)))], {1.0: "one", 10.0: "ten"})
    assert {"a 90.0 %", "one", "ten"} <= set(texts(svg))
    assert line_chart([("a", ((5.0, 0.5),))], {})


def test_labels_do_not_cover_each_other():
    placed = spread_out([(10.0, 0, "a"), (11.0, 1, "b"), (90.0, 2, "c")], 17)
    assert [y for y, _, _ in placed] == [10.0, 27.0, 90.0]


@pytest.mark.parametrize(
    ("lowest", "ticks"),
    [
        (0.0, [0, 20, 40, 60, 80, 100]),
        (0.57, [50, 60, 70, 80, 90, 100]),
        (0.81, [80, 85, 90, 95, 100]),
        (0.968, [96, 97, 98, 99, 100]),
        (1.0, [99, 100]),
    ],
)
def test_an_axis_begins_where_the_lines_are(lowest, ticks):
    assert percent_ticks(lowest) == ticks


def test_a_line_chart_uses_its_height():
    text = line_chart([("a", [(1, 0.97), (10, 0.99)])], {})
    assert "97 %" in text
    assert ">0 %<" not in text
