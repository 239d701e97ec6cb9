"""What `holdfast run` does."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from holdfast.cli.plan_show import make_console, print_json
from holdfast.cli.run_logs import LogWatcher
from holdfast.errors import HoldfastError
from holdfast.observe.events import Event
from holdfast.observe.plan_diff import describe_transition, transition_numbers
from holdfast.observe.progress import LiveProgress, PlainProgress
from holdfast.observe.quantities import count
from holdfast.observe.report_text import report_lines
from holdfast.observe.timeline_view import describe_micro_batches, describe_shape
from holdfast.runtime.config.settings import EXIT_USAGE, read_config
from holdfast.runtime.launch.check_settings import check_start
from holdfast.runtime.launch.job import Job
from holdfast.runtime.launch.prepare import prepare_job
from holdfast.runtime.record.recorder import OnEvent


class Shown(NamedTuple):
    """What of a run is shown."""

    quiet: bool = False
    """Errors only."""
    verbose: bool = False
    """Also what the processes log."""
    as_json: bool = False
    """The report only, for programs."""


def run_file(file: Path, settings: Sequence[str], shown: Shown, *, dry_run: bool) -> int:
    if shown.quiet and shown.verbose:
        raise HoldfastError("--quiet and --verbose exclude each other", exit_code=EXIT_USAGE)
    job = prepare_job(read_config(file, settings, os.environ))
    if dry_run:
        _show(job, as_json=shown.as_json)
        return 0
    check_start(job.config, os.environ)
    # Only now: it brings torch along, and a wrong job should not wait for that.
    from holdfast.runtime.launch.launcher import JobFailed, run_job

    try:
        with watch_run(shown, make_console()) as on_event:
            result = run_job(job, on_event=on_event)
    except JobFailed as error:
        if shown.as_json:
            print_json(error.report)
        raise
    if shown.as_json:
        print_json(result.report)
    elif not shown.quiet:
        print("\n".join(report_lines(result.report)))
    return result.exit_code


@contextmanager
def watch_run(shown: Shown, console: Console) -> Iterator[OnEvent]:
    """Shows events and, where asked for, what the processes log."""
    with ExitStack() as stack:
        watchers: list[OnEvent] = []
        if not (shown.quiet or shown.as_json):
            progress = progress_on(console)
            stack.enter_context(progress)
            watchers.append(progress)
        if shown.verbose:
            live = console.is_terminal and not shown.as_json
            # Above the moving line, which only its own console knows of.
            show = console.out if live else lambda line: print(line, file=sys.stderr, flush=True)
            watchers.append(stack.enter_context(LogWatcher(show)))

        def on_event(event: Event) -> None:
            for watch in watchers:
                watch(event)

        yield on_event


def progress_on(console: Console) -> LiveProgress | PlainProgress:
    """A moving line on a terminal, plain lines elsewhere."""
    if console.is_terminal:
        return LiveProgress(console)
    return PlainProgress(lambda line: print(line, flush=True))


def _show(job: Job, *, as_json: bool) -> None:
    """The plans, and what lies between them."""
    if as_json:
        print_json(_numbers(job))
        return
    data = job.config.data
    print(
        f"ok: {job.config.model.preset} ({job.num_parameters:,} parameters), "
        f"{count(job.config.job.steps, 'step')} of "
        f"{describe_micro_batches(job.plans[0].plan).partition(' a step')[0]} "
        f"({data.rows} x {data.seq_len} tokens each), {count(len(job.workers), 'worker')}"
    )
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
