"""What `holdfast run` does."""

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from holdfast.cli.plan_show import make_console, print_json
from holdfast.cli.run_logs import LogWatcher
from holdfast.cli.run_view import serve_beside
from holdfast.cli.view_run import page_url
from holdfast.data.progress_lines import ProgressLines
from holdfast.errors import HoldfastError
from holdfast.observe.callbacks.callback_thread import CallbackThread
from holdfast.observe.callbacks.worker_errors import WorkerErrors
from holdfast.observe.events import Event
from holdfast.observe.live_progress import LiveProgress
from holdfast.observe.plain_progress import PlainProgress
from holdfast.observe.plan_diff import describe_transition, transition_numbers
from holdfast.observe.quantities import count, format_bytes
from holdfast.observe.report import RunReport
from holdfast.observe.report_text import report_lines
from holdfast.observe.timeline_view import describe_micro_batches, describe_shape
from holdfast.plan.plan import Plan
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.settings import EXIT_USAGE, read_config
from holdfast.runtime.launch.check_settings import check_start
from holdfast.runtime.launch.data_summary import data_lines, summarise_data
from holdfast.runtime.launch.job import Job
from holdfast.runtime.launch.prepare import prepare_job
from holdfast.runtime.launch.resources import provide_for
from holdfast.runtime.launch.resume import choose_run_dir, finished_report
from holdfast.runtime.launch.run_callbacks import callbacks_of
from holdfast.runtime.launch.run_memory import KeptMemory
from holdfast.runtime.launch.signals import SignalBox, StoppedEarly
from holdfast.runtime.record.recorder import OnEvent


class Shown(NamedTuple):
    """What of a run is shown."""

    quiet: bool = False
    """Errors only."""
    verbose: bool = False
    """Also what the processes log."""
    as_json: bool = False
    """The report only, for programs."""


def run_file(
    file: Path, settings: Sequence[str], shown: Shown, *, dry_run: bool, detach: bool = False
) -> int:
    if shown.quiet and shown.verbose:
        raise HoldfastError("--quiet and --verbose exclude each other", exit_code=EXIT_USAGE)
    if dry_run:
        job = prepare_job(choose_run_dir(_read(file, settings)), tokenise=False)
        callbacks_of(job.config)
        _show(job, as_json=shown.as_json)
        return 0
    if detach:
        from holdfast.cli.run_detached import start_detached

        config = choose_run_dir(_read(file, settings))
        prepare_job(config, tokenise=False)  # what is wrong with it is said here
        return start_detached(config, file, settings)
    with _stopped_early() as stopped, SignalBox() as signals:
        # From now on a signal has its meaning, also while things start.
        config = choose_run_dir(_read(file, settings))
        signals.expect(config.job.signals)
        if (report := finished_report(config)) is not None:
            _show_finished(report, shown)
            return 0
        is_silent = shown.quiet or shown.as_json
        progress = None if is_silent else ProgressLines(lambda line: show_on_stderr([line]))
        job = prepare_job(config, on_progress=progress)
        callbacks = callbacks_of(job.config)
        check_start(job.config, os.environ)
        provide_for(job)  # a strict job is refused here, with nothing written
        callbacks.append(WorkerErrors(show_on_stderr))
        with CallbackThread(callbacks, show_on_stderr) as watch:
            return _train(job, signals, shown, watch, ["holdfast", "run", str(file), *settings])
    return stopped[0]


@contextmanager
def _stopped_early() -> Iterator[list[int]]:
    """The exit code, if a signal stops the command before its job has begun."""
    codes: list[int] = []
    try:
        yield codes
    except StoppedEarly as stop:
        show_on_stderr([f"holdfast: {stop}"])
        codes.append(stop.exit_code)


def _read(file: Path, settings: Sequence[str]) -> JobConfig:
    return read_config(file, settings, os.environ)


def _train(
    job: Job, signals: SignalBox, shown: Shown, watch: OnEvent, command: Sequence[str]
) -> int:
    # Only now: it brings torch along, and a wrong job should not wait for that.
    from holdfast.runtime.launch.launcher import JobFailed, run_job

    try:
        with (
            _page_beside(job, shown) as page,
            watch_run(shown, make_console(), job.plans[0].plan, page) as on_screen,
        ):

            def on_event(event: Event) -> None:
                watch(event)
                on_screen(event)

            result = run_job(job, on_event=on_event, signals=signals, show=show_on_stderr)
    except JobFailed as error:
        show_end(error.report, shown, [])
        if not shown.quiet and not shown.as_json:
            show_lines(how_to_go_on(job, error.report, error.kept, command))
        raise
    lines = report_lines(result.report)
    if result.exit_code:
        lines += how_to_go_on(job, result.report, result.kept, command)
    show_end(result.report, shown, lines)
    return result.exit_code


@contextmanager
def _page_beside(job: Job, shown: Shown) -> Iterator[OnEvent | None]:
    """Where the job asks for it."""
    view = job.config.view
    with serve_beside(view) as page:
        if page is not None and not (shown.quiet or shown.as_json):
            show_lines([f"page: {page_url(view.host, view.port)}"])
        yield page


def show_end(report: RunReport, shown: Shown, lines: Sequence[str]) -> None:
    if shown.as_json:
        with suppress(OSError):
            print_json(report)
    elif not shown.quiet:
        show_lines(lines)


def _show_finished(report: RunReport, shown: Shown) -> None:
    done = f"{report.run_dir}: finished before, all {count(report.next_step, 'step')} are done"
    show_end(report, shown, [done, *report_lines(report)])


def how_to_go_on(
    job: Job, report: RunReport, kept: KeptMemory | None, command: Sequence[str]
) -> list[str]:
    """The command that goes on where this run has ended, and what is left for it in memory."""
    run_dir = [] if job.config.job.run_dir else ["--job.run_dir", report.run_dir]
    lines = [f"go on: {shlex.join([*command, *run_dir])}"]
    if kept is not None:
        size = format_bytes(kept.num_bytes)
        lines.append(
            f"the state after {count(kept.step, 'step')} stays in memory ({size}) for that; "
            f"`{shlex.join(['holdfast', 'clean', report.run_dir, '--yes'])}` removes it"
        )
    return lines


def show_on_stderr(lines: Sequence[str]) -> None:
    with suppress(OSError):
        print("\n".join(lines), file=sys.stderr, flush=True)


def show_lines(lines: Sequence[str]) -> None:
    """A reader that went away (`| head`, a closed terminal) ends no training."""
    try:
        print("\n".join(lines), flush=True)
    except OSError:
        silence()


def silence() -> None:
    """There is no reader: what is printed from now on goes nowhere."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


@contextmanager
def watch_run(
    shown: Shown, console: Console, plan: Plan, page: OnEvent | None = None
) -> Iterator[OnEvent]:
    """Shows events and, where asked for, what the processes log; a page is told them, too."""
    with ExitStack() as stack:
        watchers: list[OnEvent] = []
        if page is not None:
            watchers.append(page)
        if not (shown.quiet or shown.as_json):
            progress = progress_on(console, plan, is_verbose=shown.verbose)
            stack.enter_context(progress)
            watchers.append(progress)
        if shown.verbose:
            live = console.is_terminal and not shown.as_json
            # Above the moving line, which only its own console knows of.
            show = console.out if live else lambda line: show_on_stderr([line])
            watchers.append(stack.enter_context(LogWatcher(show)))

        def on_event(event: Event) -> None:
            try:
                for watch in watchers:
                    watch(event)
            except OSError:
                watchers.clear()
                silence()

        yield on_event


def progress_on(
    console: Console, plan: Plan, *, is_verbose: bool = False
) -> LiveProgress | PlainProgress:
    """A table that is kept up to date on a terminal, plain lines elsewhere."""
    if console.is_terminal:
        return LiveProgress(console, plan, is_verbose=is_verbose)
    return PlainProgress(lambda line: print(line, flush=True), is_verbose=is_verbose)


def _show(job: Job, *, as_json: bool) -> None:
    """The plans, and what lies between them."""
    if as_json:
        print_json(_numbers(job))
        return
    data = job.config.data
    print(
        f"ok: {job.config.model.title} ({job.num_parameters:,} parameters), "
        f"{count(job.config.job.steps, 'step')} of "
        f"{describe_micro_batches(job.plans[0].plan).partition(' a step')[0]} "
        f"({data.rows} x {data.seq_len} tokens each), {count(len(job.workers), 'worker')}"
    )
    for line in data_lines(job, summarise_data(job)):
        print(line)
    for number, planned in enumerate(job.plans):
        plan = planned.plan
        print(
            f"from step {planned.at_step}: {describe_shape(plan)}, {plan.schedule.kind}, "
            f"{count(len(plan.workers), 'worker')}"
        )
        if number:
            for line in describe_transition(job.transitions[number - 1], plan):
                print(f"    {line}")


def _numbers(job: Job) -> dict[str, object]:
    changes = zip(job.plans[1:], job.transitions, strict=True)
    return {
        "num_parameters": job.num_parameters,
        "steps": job.config.job.steps,
        "micro_batches": job.plans[0].plan.num_micro_batches,
        "workers": job.workers,
        "plans": [
            {"at_step": planned.at_step, "shape": describe_shape(planned.plan)}
            for planned in job.plans
        ],
        "changes": [
            {"at_step": planned.at_step, **transition_numbers(transition)}
            for planned, transition in changes
        ],
    }
