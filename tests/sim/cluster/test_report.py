"""From results to the report's values."""

from holdfast.observe.simulation_report import simulation_html
from holdfast.sim.cluster.compare import run_policies
from holdfast.sim.cluster.hazards import HazardRates, draw_events
from holdfast.sim.cluster.report import MOST_DECISIONS, build_report
from holdfast.sim.cluster.run import RunSettings
from holdfast.sim.cluster.sweep import Point, SweepCell
from support.sim_jobs import HOUR, small_job


def test_a_report_holds_what_was_simulated():
    job = small_job(replicas=8)
    events = draw_events(job, HazardRates(mtbf_ms=HOUR // 2), 24 * HOUR, 2)
    settings = RunSettings(length_ms=24 * HOUR)
    found = list(run_policies(job, events, settings, ("checkpoint", "resihp")))
    points = [Point(8.0, "resihp", 0.9), Point(16.0, "resihp", 0.8)]
    report = build_report(
        job, "often", 2, found, points, [], [SweepCell("1 lost", "resihp", "x", 0.5, 70)]
    )
    assert report.hours == 24.0
    assert [view.name for view in report.policies] == ["checkpoint restart", "ResiHP-like"]
    assert report.by_scale[0].points == ((8.0, 0.9), (16.0, 0.8))
    assert report.cells[0].stall_s == 0.07
    assert len(report.decisions) == MOST_DECISIONS
    assert report.decisions[0].time.count(":") == 2
    assert "ResiHP-like" in simulation_html(report)
