"""Run directories, as the commands that look at a run read them."""

from pathlib import Path

import msgspec

from holdfast.errors import HoldfastError
from holdfast.observe.report import RunReport, make_report
from holdfast.observe.run.load import RunFollower, follow_run
from holdfast.observe.run_directory import JOURNAL, REPORT


class _Sizes(msgspec.Struct):
    """What the journal does not know of a run that has ended."""

    staging_bytes: int = 0
    final_bytes: int = 0


def read_run(run_dir: Path) -> RunFollower:
    """A run that has begun."""
    follower = follow_run(run_dir)
    if follower.model.started is None:
        raise HoldfastError(f"{run_dir}: nothing has begun; {JOURNAL} does not name a job")
    return follower


def read_report(run_dir: Path) -> RunReport:
    run = read_run(run_dir).model
    assert run.started is not None
    sizes, path = _Sizes(), run_dir / REPORT
    if run.ended is not None and path.is_file():
        sizes = msgspec.json.decode(path.read_bytes(), type=_Sizes)
    return make_report(
        run.started, run, staging_bytes=sizes.staging_bytes, final_bytes=sizes.final_bytes
    )
