import io

import msgspec
import pytest
from rich.console import Console

from holdfast.observe.events import ProtectionChanged, ProtectionLacking, Restored
from holdfast.observe.report import make_report
from holdfast.observe.report_text import describe_report, render_report, report_lines
from support.job_events import step
from support.made_runs import MadeRun, disturbed_run


def reported(run):
    model = run.model()
    return make_report(model.started, model)


def test_the_last_lines_of_a_run():
    lines = report_lines(reported(disturbed_run().end()))
    assert lines[0] == (
        "finished: 60 steps, loss 5.0000 -> 3.1447, median step 100 ms, 1,000 tokens/s, 9.7 s in "
        "all"
    )
    assert lines[1] == (
        "failures: 1 coordinator lost, 1 hung, 1 killed; 1 recovery, 1 restore, longest stall "
        "2.50 s, 2 micro-batches and 4 steps done again, all workers are back"
    )
    assert lines[-1].startswith("goodput 6")
    assert "lost to detection 1.90 s" in lines[-1]


def test_a_quiet_run_needs_few_words():
    assert len(report_lines(reported(MadeRun().start().steps(9).end()))) == 2
    assert describe_report(reported(MadeRun().start())) == "unfinished: 0 steps, 0.5 s in all"


def test_a_run_that_goes_on_is_no_failure():
    run = MadeRun().start().steps(9).end()
    went_on = Restored(
        epoch=2,
        step=9,
        shape="2 replicas x 2 stages",
        num_workers=4,
        steps_redone=0,
        goes_on=True,
        stall_s=0.0,
        load_s=0.01,
        bytes_by_origin={},
        file="plans/epoch-2.toml",
    )
    lines = report_lines(reported(run.start().tell(went_on).steps(3).end()))
    assert "went on 1 time where the run before had ended, 0 steps done again" in lines
    assert not any(line.startswith("failures") for line in lines)


def test_what_it_was_protected_against():
    first = ProtectionChanged(against=("any one worker",), not_against=("any one node",))
    then = ProtectionChanged(against=("any one worker", "any one node"), not_against=())
    run = MadeRun().start().tell(ProtectionLacking(reason="x = 1, and 2 are needed"))
    lines = report_lines(reported(run.tell(first).steps(3).tell(then).end()))
    assert "protected against the loss of any one worker; any one node (1 change)" in lines
    assert "lacking: x = 1, and 2 are needed" in lines
    text = report_lines(reported(MadeRun().start().tell(first).end()))
    assert "protected against the loss of any one worker; not: any one node" in text


def test_what_snapshots_came_to():
    def copied(number, num_bytes, in_bubbles, wait_s):
        return msgspec.structs.replace(
            step(number, 0.1),
            copied_bytes=num_bytes,
            copied_in_bubbles=in_bubbles,
            copy_wait_s=wait_s,
        )

    run = MadeRun().start().steps(9)
    run.tell(copied(9, 3_000_000, 2_250_000, 0.0), 0.1)
    run.tell(copied(10, 1_000_000, 0, 0.011), 0.1)
    report = reported(run.end())
    assert (report.copied_bytes, report.copied_in_bubbles) == (4_000_000, 0.5625)
    assert report.copy_cost == pytest.approx(0.01)
    line = (
        "snapshots: 3.8 MiB copied, 56.2 % of it in bubbles; training waited 11 ms for copies, "
        "1.0 % of the time of its steps"
    )
    assert line in report_lines(report)


@pytest.mark.parametrize("width", [60, 120])
def test_the_tables_say_the_same(width):
    console = Console(file=io.StringIO(), width=width)
    report = reported(disturbed_run().end())
    console.print(render_report(report))
    text = console.file.getvalue()
    assert "2.50 s" in text
    assert "detection" in text
    assert "100.0 %" in text
    assert max(map(len, text.splitlines())) <= width


def test_workers_that_are_not_back():
    run = MadeRun().start().steps(9).lose("n1.g0").steps(2)
    assert "not back: n1.g0" in report_lines(reported(run))[1]
