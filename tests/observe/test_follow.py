from holdfast.observe.follow import Follower, RunReader
from holdfast.observe.journal import Journal
from holdfast.observe.run_clock import start_clock
from support.job_events import CHANGED, STARTED, step


def test_events_come_once_and_in_their_order(tmp_path):
    paths = tmp_path / "journal.jsonl", tmp_path / "metrics.jsonl"
    follower = Follower(*paths)
    assert follower.read() == []
    sizes = []
    with Journal(*paths, start_clock().stamp) as journal:
        for event in (STARTED, step(0, 1.0), CHANGED, step(1, 1.0)):
            journal.write(event)
            sizes.append(journal.sizes)
    found = [follower.read(*size) for size in sizes]
    assert found == [[STARTED], [step(0, 1.0)], [CHANGED], [step(1, 1.0)]]
    assert follower.read() == []


def test_a_torn_line_is_read_when_it_is_whole(tmp_path):
    paths = tmp_path / "journal.jsonl", tmp_path / "metrics.jsonl"
    with Journal(*paths, start_clock().stamp) as journal:
        journal.write(STARTED)
    whole = paths[0].read_bytes()
    paths[0].write_bytes(whole[:-5])
    follower = Follower(*paths)
    assert follower.read() == []
    paths[0].write_bytes(whole)
    assert follower.read() == [STARTED]


class Clock:
    """Stamps with whole seconds."""

    def __init__(self):
        self.now = 0

    def __call__(self):
        self.now += 1
        return f"2027-01-01T00:00:{self.now:02}+00:00"


def test_events_of_both_files_come_in_the_order_of_time(tmp_path):
    reader = RunReader(tmp_path)
    assert reader.read() == []
    events = [STARTED, step(0, 1.0), CHANGED, step(1, 1.0), step(2, 1.0), CHANGED]
    with Journal(tmp_path / "journal.jsonl", tmp_path / "metrics.jsonl", Clock()) as journal:
        for event in events:
            journal.write(event)
    found = reader.read() + reader.read()
    assert [getattr(event, "step", None) for _, event in found] == [None, 0, 6, 1, 2, 6]
    assert [at_s - found[0][0] for at_s, _ in found] == [0, 1, 2, 3, 4, 5]


def test_an_event_waits_for_older_steps_that_are_not_read_yet(tmp_path, monkeypatch):
    """The writer writes a step and then an event between two readings of ours."""
    paths, clock = (tmp_path / "journal.jsonl", tmp_path / "metrics.jsonl"), Clock()
    reader = RunReader(tmp_path)
    with Journal(*paths, clock) as journal:
        journal.write(STARTED)
        steps = reader._steps

        def late():
            found = steps()
            journal.write(step(0, 1.0))
            journal.write(CHANGED)
            return found

        monkeypatch.setattr(reader, "_steps", late)
        assert [event for _, event in reader.read()] == [STARTED]
        monkeypatch.setattr(reader, "_steps", steps)
        assert [getattr(event, "step", None) for _, event in reader.read()] == [0, 6]


def test_steps_without_a_time_follow_each_other(tmp_path):
    line = b'{"step":%d,"epoch":1,"loss":1.0,"norm":1.0,"tokens":1,"tokens_per_s":1.0,'
    line += b'"step_time_s":0.5,"learning_rate":0.1,"applied":true}\n'
    (tmp_path / "metrics.jsonl").write_bytes(line % 0 + line % 1)
    assert [at_s for at_s, _ in RunReader(tmp_path).read()] == [0.5, 1.0]
