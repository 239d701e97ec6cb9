import msgspec

from holdfast.observe.events import StepDone, StepSkipped
from holdfast.observe.follow import GrowingFile
from holdfast.observe.journal import Journal, LineFile, read_journal, read_lines, read_metrics
from holdfast.observe.run_clock import start_clock

STEP = StepDone(
    step=3,
    epoch=1,
    loss=None,
    norm=1.0,
    tokens=64,
    tokens_per_s=128.0,
    step_time_s=0.5,
    learning_rate=0.1,
    applied=False,
)


def test_steps_are_metrics_and_the_rest_is_the_journal(tmp_path):
    events, metrics = tmp_path / "journal.jsonl", tmp_path / "metrics.jsonl"
    skipped = StepSkipped(step=3, reason="not finite")
    with Journal(events, metrics, now=lambda: "12:00") as journal:
        journal.write(STEP)
        journal.write(skipped)
    assert list(read_lines(events)) == [
        {"time": "12:00", "event": "step_skipped", "reason": "not finite", "step": 3}
    ]
    (line,) = read_lines(metrics)
    assert list(line) == [
        "time",
        "step",
        "epoch",
        "loss",
        "norm",
        "tokens",
        "tokens_per_s",
        "step_time_s",
        "learning_rate",
        "applied",
        "snapshot_step",
        "copied_bytes",
        "copied_in_bubbles",
        "copy_wait_s",
        "eval_loss",
        "eval_s",
    ]
    assert read_journal(events) == [skipped]
    assert read_metrics(metrics) == [STEP]


def test_a_torn_last_line_is_left_out(tmp_path):
    path = tmp_path / "lines"
    file = LineFile(path)
    file.write({"a": 1})
    file.close()
    with path.open("ab") as end:
        end.write(b'{"a": 2')
    assert list(read_lines(path)) == [{"a": 1}]


def test_lines_are_there_at_once_and_added_at_the_end(tmp_path):
    path = tmp_path / "lines"
    for number in range(2):
        file = LineFile(path, sync=True)
        file.write(number)
        assert path.read_bytes() == b"".join(b"%d\n" % n for n in range(number + 1))
        file.close()


def test_the_time_of_an_event_sorts_as_text(tmp_path):
    with Journal(tmp_path / "a", tmp_path / "b", start_clock().stamp) as journal:
        journal.write(StepSkipped(step=1))
    time = msgspec.json.decode((tmp_path / "a").read_bytes())["time"]
    assert time.endswith("+00:00")
    assert time[10] == "T"


def test_lines_wait_while_the_disk_is_full(tmp_path, monkeypatch):
    file = LineFile(tmp_path / "lines")
    monkeypatch.setattr("holdfast.observe.journal.append_whole", lambda fd, data: "full")
    for number in range(3):
        file.write({"n": number})
    assert (file.trouble, file.num_waiting, file.size) == ("full", 3, 0)
    monkeypatch.undo()
    file.write({"n": 3})
    assert (file.trouble, file.num_waiting) == ("", 0)
    file.close()
    assert [line["n"] for line in read_lines(tmp_path / "lines")] == [0, 1, 2, 3]


def test_a_torn_line_is_ended_and_left_out(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b'{"n":0}\n{"n":')
    file = LineFile(path)
    file.write({"n": 1})
    file.close()
    assert [line["n"] for line in read_lines(path)] == [0, 1]
    assert GrowingFile(path).read() == [b'{"n":0}', b'{"n":1}']
