import msgspec

from holdfast.observe.report import RunReport, format_report, make_report
from support.job_events import CHANGED, ENDED, STARTED, step


def test_the_summary():
    steps = [step(0, 90.0, 6.0), step(1, 5.0), step(2, 1.0), step(3, 2.0), step(4, 2.0, 0.5)]
    report = make_report(STARTED, steps, [CHANGED, CHANGED], ENDED, staging_bytes=77)
    assert (report.first_loss, report.final_loss, report.steps) == (6.0, 0.5, 5)
    assert report.median_step_s == 2.0
    assert report.tokens_per_s == 5.0
    assert (report.longest_stall_s, report.bytes_moved) == (0.25, 2000)
    assert msgspec.json.decode(format_report(report), type=RunReport) == report


def test_a_run_without_a_step():
    report = make_report(STARTED, [], [], ENDED)
    assert (report.median_step_s, report.tokens_per_s, report.final_loss) == (None, None, None)


def test_a_run_that_is_all_warm_up():
    assert make_report(STARTED, [step(0, 3.0)], [], ENDED).median_step_s == 3.0
