"""Of a worker's traceback, what is the user's is shown, once."""

import msgspec

from holdfast.observe.callbacks.worker_errors import WorkerErrors, last_error, user_part
from holdfast.observe.events import JobStarted, WorkerLost
from holdfast.observe.log_lines import LogLine
from tidy.source_tree import SRC

TRACE = f"""Traceback (most recent call last):
  File "{SRC}/engine/compute.py", line 127, in _run
    y = self._units[unit](x)
  File "/x/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1, in _call_impl
    return forward_call(*args)
  File "/home/me/model.py", line 13, in forward
    raise ValueError("mine")
ValueError: mine"""
MINE = """Traceback (most recent call last):
  File "/home/me/model.py", line 13, in forward
    raise ValueError("mine")
ValueError: mine"""


def line(error, message="x"):
    found = LogLine(
        time="t", level="error", process="n0.g0", pid=1, module="m", message=message, error=error
    )
    return msgspec.json.encode(found) + b"\n"


def test_the_part_of_the_user():
    assert user_part(TRACE) == MINE
    assert user_part(TRACE.replace("/home/me/model.py", f"{SRC}/engine/x.py")) == ""


def test_the_last_error_of_a_log(tmp_path):
    log = tmp_path / "n0.g0.jsonl"
    assert last_error(log) == ""
    log.write_bytes(line("old") + line(TRACE) + line("") + b'{"torn')
    assert last_error(log) == TRACE


def test_each_error_is_shown_once(tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "n0.g0.jsonl").write_bytes(line(TRACE))
    (logs / "n0.g1.jsonl").write_bytes(line(TRACE))
    shown = []
    errors = WorkerErrors(shown.append)
    started = JobStarted(
        name="x",
        version="1",
        steps=1,
        model="m",
        num_parameters=1,
        num_workers=2,
        micro_batches=1,
        run_dir=str(tmp_path),
    )
    errors.on_event(started)
    for worker, kind in (("n0.g0", "error"), ("n0.g1", "error"), ("n0.g0", "killed")):
        errors.on_event(WorkerLost(worker=worker, incarnation=1, kind=kind))
    assert shown == [MINE.splitlines()]
