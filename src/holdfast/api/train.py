"""`holdfast.train`: a job from Python, the same as `holdfast run` makes of a job file.

Every worker is a process of its own and builds model, data and optimizer itself. So they are given
as functions or classes that can be imported by name, or as import paths.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from holdfast.data.progress_lines import ProgressLines
from holdfast.engine.import_path import is_loading, path_of
from holdfast.errors import HoldfastError
from holdfast.observe.callbacks.callback import Callback, Handler
from holdfast.observe.callbacks.callback_thread import CallbackThread
from holdfast.observe.events import Event
from holdfast.observe.plain_progress import PlainProgress
from holdfast.observe.report import RunReport
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.settings import load_tables, read_tables
from holdfast.runtime.launch.check_settings import check_start
from holdfast.runtime.launch.prepare import prepare_job
from holdfast.runtime.launch.resources import provide_for
from holdfast.runtime.launch.resume import choose_run_dir, finished_report
from holdfast.runtime.launch.run_callbacks import callbacks_of, checked_callback

FactoryLike = str | Callable[..., Any] | Mapping[str, Any] | None
"""A function or class, its import path, or the keys of its section in a job file."""

_log = logging.getLogger("holdfast")


def train(
    job: str | os.PathLike[str] | Mapping[str, Mapping[str, Any]],
    *,
    model: FactoryLike = None,
    data: FactoryLike = None,
    optimizer: FactoryLike = None,
    callbacks: Sequence[Callback | Handler | str] = (),
    show: Callable[[str], object] | None = print,
) -> RunReport:
    """Run a job to its end; what became of it.

    `job` is a job file, or its sections as a dictionary. `model`, `data` and `optimizer` go before
    what it says of them. `callbacks` are objects of `hf.Callback`, functions that get every event,
    or import paths of either; they are called beside the training, and what they raise is logged
    and stops nothing. `show` gets lines about the progress, None: nothing is shown. A job
    that cannot run, or fails, raises `HoldfastError`; one that was stopped by a signal raises
    KeyboardInterrupt, with everything saved.
    """
    if importing := is_loading():
        raise HoldfastError(
            f"train() is called while {importing} is imported by a worker: call it below "
            f'`if __name__ == "__main__":`'
        )
    config = choose_run_dir(make_config(job, model=model, data=data, optimizer=optimizer))
    if (report := finished_report(config)) is not None:
        return report
    progress = ProgressLines(show) if show is not None else None
    prepared = prepare_job(config, on_progress=progress)
    source_dir = config.job.source_dir
    watching = [
        *callbacks_of(config),
        *(
            checked_callback(given, source_dir, f"callbacks[{n}]")
            for n, given in enumerate(callbacks)
        ),
    ]
    check_start(prepared.config, os.environ)
    provide_for(prepared)
    # Only now: it brings torch along, and a wrong job should not wait for that.
    from holdfast.runtime.launch.launcher import run_job

    with ExitStack() as stack:
        watchers: list[Handler] = [stack.enter_context(CallbackThread(watching, _log_lines))]
        if show is not None:
            watchers.append(stack.enter_context(PlainProgress(show)))

        def on_event(event: Event) -> None:
            for watch in watchers:
                watch(event)

        result = run_job(prepared, on_event=on_event)
    if result.exit_code:
        raise KeyboardInterrupt(
            f"the job was stopped; it goes on with run_dir {config.job.run_dir}"
        )
    return result.report


def make_config(
    job: str | os.PathLike[str] | Mapping[str, Mapping[str, Any]], **given: FactoryLike
) -> JobConfig:
    if isinstance(job, Mapping):
        path = Path.cwd() / "job"
        tables: dict[str, Any] = {name: _copied(section) for name, section in job.items()}
    else:
        path = Path(job)
        tables = load_tables(path)
    for section, value in given.items():
        if value is None:
            continue
        if isinstance(value, Mapping):
            tables[section] = {**tables.get(section, {}), **value}
        else:
            found = {"factory": path_of(value, section)}
            tables[section] = {**tables.get(section, {}), **found}
    return read_tables(tables, path, (), os.environ)


def _checked(
    callbacks: Sequence[Callback | Handler | str], config: JobConfig
) -> list[Callback | Handler]:
    return [
        checked_callback(given, config.job.source_dir, f"callbacks[{number}]")
        for number, given in enumerate(callbacks)
    ]


def _log_lines(lines: list[str]) -> None:
    _log.error("%s", "\n".join(lines))


def _copied(section: Any) -> Any:
    return dict(section) if isinstance(section, Mapping) else section
