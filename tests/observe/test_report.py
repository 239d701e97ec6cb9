import msgspec
import pytest

from holdfast.observe.report import RunReport, format_report, make_report
from support.made_runs import MadeRun, disturbed_run


def reported(run, **more):
    model = run.model()
    return make_report(model.started, model, **more)


def test_the_summary():
    report = reported(disturbed_run().end(), staging_bytes=77)
    assert (report.outcome, report.steps, report.next_step) == ("finished", 60, 60)
    assert report.failures == {"coordinator lost": 1, "hung": 1, "killed": 1}
    assert (report.not_back, report.steps_redone, report.micro_batches_redone) == ((), 4, 2)
    assert report.longest_stall_s == pytest.approx(2.5)
    assert (report.staging_bytes, report.bytes_moved) == (77, 1000)
    assert report.median_step_s == 0.1
    assert report.tokens == 60 * 100
    assert report.tokens_per_s == pytest.approx(1000)
    assert sum(report.time_s.values()) == pytest.approx(report.seconds)
    assert sum(report.badput_s.values()) == pytest.approx(report.seconds * (1 - report.goodput))
    assert msgspec.json.decode(format_report(report), type=RunReport) == report


def test_a_run_without_a_step():
    report = reported(MadeRun().start().end("failed"))
    assert (report.median_step_s, report.tokens_per_s, report.final_loss) == (None, None, None)
    assert report.goodput == 0


def test_a_run_that_was_killed():
    report = reported(MadeRun().start().steps(1))
    assert (report.outcome, report.next_step, report.median_step_s) == ("unfinished", 1, 0.1)
