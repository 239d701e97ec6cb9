import time
from datetime import datetime

from holdfast.observe.follow import last_time_s
from holdfast.observe.journal import Journal
from holdfast.observe.run_clock import start_clock
from support.job_events import STARTED, step


def test_a_clock_that_is_set_moves_nothing(monkeypatch):
    clock = start_clock()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    before = clock.now_s
    assert clock.now_s >= before > 1e9
    assert abs(datetime.fromisoformat(clock.stamp()).timestamp() - before) < 1
    assert abs(clock.seconds - (clock.now_s - clock.wall_s)) < 1


def test_a_run_begins_no_earlier_than_the_last_line_of_the_one_before(tmp_path):
    assert last_time_s(tmp_path) == 0.0
    paths = tmp_path / "journal.jsonl", tmp_path / "metrics.jsonl"
    stamps = iter(["2040-01-01T00:00:01.000+00:00", "2040-01-01T00:00:02.500+00:00"])
    with Journal(*paths, lambda: next(stamps)) as journal:
        journal.write(STARTED)
        journal.write(step(0, 1.0))
    with paths[0].open("ab") as file:
        file.write(b'{"time": "torn')
    last_s = last_time_s(tmp_path)
    assert last_s == datetime.fromisoformat("2040-01-01T00:00:02.500+00:00").timestamp()
    assert start_clock(last_s).now_s >= last_s
