"""The report: complete, offline, and nothing breaks out of it."""

import re

import msgspec

from holdfast.observe.simulation_report import (
    CellView,
    ChartLine,
    DecisionView,
    PolicyView,
    SimulationReport,
    shade,
    simulation_html,
)

VIEW = PolicyView(
    name="<b>ours</b>",
    goodput=0.9,
    lost={"detection": 0.06, "saving": 0.04},
    spans=((0.0, 10.0, 0.9),),
    num_stops=3,
    median_stall="5 s",
    rule="do it & go on",
    source="here",
    limits="none",
    constants="few",
)
REPORT = SimulationReport(
    title="model on 8 devices",
    facts=(("nodes", "1"),),
    hours=10.0,
    failures=(1.0, 7.2, 7.9),
    policies=(VIEW,),
    by_scale=(ChartLine("ours", ((8.0, 0.9), (16.0, 0.8))),),
    by_gap=(ChartLine("ours", ((8.0, 0.9), (16.0, 0.8))),),
    cells=(CellView("1 lost", "ours", "drop", 0.9, 180.0),),
    decisions=(DecisionView("0:00:01", "decided", "n0", "drop", 0.9, 2.0, "a < b"),),
)


def test_all_parts_are_there():
    page = simulation_html(REPORT)
    for title in ("What is lost to what", "Throughput over time", "against scale",
                  "failure rate", "Strategy chosen", "The policies", "journal"):  # fmt: skip
        assert title in page
    assert "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION" in page
    assert "3 min" in page
    assert page.count("<svg") == page.count("</svg>") == 5


def test_it_needs_nothing_from_elsewhere():
    page = simulation_html(REPORT)
    assert re.search(r"https?://|<script|<link|src=|url\(|@import", page) is None


def test_names_stay_text():
    page = simulation_html(REPORT)
    assert "<b>ours</b>" not in page
    assert "do it &amp; go on" in page


def test_parts_without_data_are_left_out():
    bare = msgspec.structs.replace(
        REPORT, hours=1.0, by_scale=(), by_gap=(), cells=(), decisions=()
    )
    page = simulation_html(bare)
    assert page.count("<svg") == 2
    assert "Strategy chosen" not in page


def test_shades_go_from_red_to_green():
    assert shade(0.0) == shade(0.33) == "hsl(0 55% 78%)"
    assert shade(1.0) == "hsl(120 55% 78%)"
