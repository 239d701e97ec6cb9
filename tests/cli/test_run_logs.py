import msgspec

from holdfast.cli.run_logs import LogWatcher
from holdfast.observe.events import JobStarted
from holdfast.observe.log_lines import LogLine


def test_everything_that_was_logged_is_shown_by_the_end(tmp_path):
    (tmp_path / "logs").mkdir()
    started = JobStarted(
        name="run",
        version="1",
        steps=1,
        model="m",
        num_parameters=1,
        num_workers=1,
        micro_batches=1,
        run_dir=str(tmp_path),
    )
    line = LogLine(
        time="2026-01-31T12:00:05.250Z",
        level="info",
        process="n0.g0",
        pid=7,
        module="m",
        message="x",
    )
    shown = []
    with LogWatcher(shown.append, poll_s=60.0) as watcher:
        watcher(started)
        (tmp_path / "logs" / "n0.g0.jsonl").write_bytes(msgspec.json.encode(line) + b"\n")
    assert shown == ["12:00:05.250 info n0.g0: x"]


def test_a_run_that_never_began_shows_nothing():
    shown = []
    with LogWatcher(shown.append):
        pass
    assert shown == []
