import io

from rich.console import Console

from holdfast.observe.events import SlownessJudged
from holdfast.observe.run.summary import summarise
from holdfast.observe.top_view import MAX_WORKERS, render_top
from support.made_runs import MadeRun, disturbed_run


def drawn(run, roles=None, **measured):
    console = Console(file=io.StringIO(), width=110)
    data = summarise(run, roles or {}, run.now_s)
    for worker in data["workers"]:
        worker |= {"speed": None, "memory_bytes": None} | measured
    console.print(render_top(run, data))
    return console.file.getvalue()


def test_a_job_at_a_glance():
    text = drawn(disturbed_run().end().model(), {"n0.g0": "r0.s0"})
    for words in (
        "finished",
        "step 60/1000",
        "1 hung",
        "n0.g0",
        "r0.s0",
        "goodput",
        "4 steps done",
    ):
        assert words in text


def test_lost_workers_come_first():
    text = drawn(MadeRun().start().steps(9).lose("n1.g1").steps(1).model())
    assert text.index("n1.g1") < text.index("n0.g0")
    assert "lost (killed)" in text


def test_slow_workers_and_what_was_measured():
    made = MadeRun().start().steps(9)
    judged = {"factor": 2.5, "confidence": 1.0, "step": 9, "probed": True}
    slow = SlownessJudged(verdict="slow", who=("n1.g1",), reason="a probe", **judged)
    text = drawn(made.tell(slow).model(), speed=0.4, memory_bytes=3 * 2**20)
    assert "slow (2.5 times)" in text
    assert "0.40" in text
    assert "3.0 MiB" in text
    assert text.index("n1.g1") < text.index("n0.g0")


def test_a_large_cluster_is_cut_short():
    run = MadeRun().start().model()
    run.workers.joined([f"n{number}.g0" for number in range(9, 200)], run.now_s)
    assert "more are alive" in drawn(run)
    assert len(drawn(run).splitlines()) < MAX_WORKERS + 20
