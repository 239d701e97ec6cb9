import io

import pytest
from rich.console import Console

from holdfast.observe.report import make_report
from holdfast.observe.report_text import describe_report, render_report, report_lines
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
