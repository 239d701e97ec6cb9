import msgspec

from holdfast.observe.events import StepDone, StepSkipped
from holdfast.observe.journal import Journal, LineFile, read_journal, read_lines, read_metrics

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
    with Journal(tmp_path / "a", tmp_path / "b") as journal:
        journal.write(StepSkipped(step=1))
    time = msgspec.json.decode((tmp_path / "a").read_bytes())["time"]
    assert time.endswith("+00:00")
    assert time[10] == "T"
