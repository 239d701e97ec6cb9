"""What `holdfast run` does."""

import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console

from holdfast.cli.plan_show import make_console, print_json
from holdfast.observe.plan_diff import describe_transition, transition_numbers
from holdfast.observe.progress import LiveProgress, PlainProgress, describe_report
from holdfast.observe.quantities import count
from holdfast.observe.timeline_view import describe_micro_batches, describe_shape
from holdfast.runtime.config.settings import read_config
from holdfast.runtime.launch.job import Job
from holdfast.runtime.launch.launcher import JobFailed, run_job
from holdfast.runtime.launch.prepare import prepare_job


def run_file(
    file: Path, settings: Sequence[str], *, dry_run: bool, quiet: bool, as_json: bool
) -> int:
    job = prepare_job(read_config(file, settings, os.environ))
    if dry_run:
        _show(job, as_json=as_json)
        return 0
    console = make_console()
    progress = nullcontext() if quiet or as_json else progress_on(console)
    try:
        with progress as on_event:
            result = run_job(job, on_event=on_event)
    except JobFailed as error:
        if as_json:
            print_json(error.report)
        raise
    if as_json:
        print_json(result.report)
    elif not quiet:
        print(describe_report(result.report))
    return result.exit_code


def progress_on(console: Console) -> LiveProgress | PlainProgress:
    """A moving line where somebody looks at it, plain lines elsewhere."""
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
