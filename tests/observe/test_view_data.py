from holdfast.observe.run.load import RunFollower
from holdfast.observe.view_data import NewsReader, RunFeed
from support.made_runs import PLAN, MadeRun, disturbed_run
from support.measured import write_times
from support.timelines import small_timeline


class Clock:
    """Every look is late enough to read the files again."""

    def __init__(self, run):
        self.now_s = run.now_s

    def __call__(self):
        self.now_s += 1.0
        return self.now_s


def test_news_follow_what_was_told_before(tmp_path):
    run = MadeRun().start().steps(20)
    path = run.write(tmp_path / "run")
    feed = RunFeed(RunFollower(path), Clock(run))
    reader = NewsReader(feed)
    first = reader.first()
    assert first["points"]["step"] == list(range(20))
    assert reader.news() is None
    more = MadeRun()
    more.now_s, more.next_step = run.now_s, 20
    more.lose("n1.g0").steps(2)
    more.write(tmp_path / "more")
    for name in ("journal.jsonl", "metrics.jsonl"):
        with (path / name).open("ab") as file:
            file.write((tmp_path / "more" / name).read_bytes())
    news = reader.news()
    assert news["points"]["step"] == [20, 21, 22]
    assert [incident["number"] for incident in news["incidents"]] == [1]
    assert len(first["notes"]) + len(news["notes"]) == len(feed.follower.model.notes)
    assert not reader.is_over


def test_a_finished_run_in_one_piece(tmp_path):
    run = disturbed_run().end()
    feed = RunFeed(RunFollower(run.write(tmp_path / "run")), Clock(run))
    everything = feed.all()
    assert len(everything["incidents"]) == 3
    assert everything["run"]["state"] == "finished"
    assert NewsReader(feed).is_over
    assert len(feed.points(0.5, 1.0)["step"]) < 12


def test_measured_steps_are_shown(tmp_path):
    run = disturbed_run().end()
    path = run.write(tmp_path / "run")
    write_times(small_timeline(PLAN, slow={"n0.g1": 2.0}), path, range(56, 60))
    feed = RunFeed(RunFollower(path), Clock(run), what_if=lambda model: [{"name": "x"}])
    head = feed.head()
    workers = {worker["name"]: worker for worker in head["workers"]}
    assert workers["n0.g1"]["speed"] < 0.9 < workers["n0.g0"]["speed"]
    assert workers["n0.g0"]["memory_bytes"] == 10
    assert head["what_if"] == [{"name": "x"}]
    alone = feed.alone()
    assert alone["step"]["step"] == 59
    assert list(alone["plans"]) == ["plans/epoch-1.toml"]
