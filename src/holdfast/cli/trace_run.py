"""What `holdfast trace` does."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.cli.run_files import read_run
from holdfast.errors import HoldfastError
from holdfast.observe.action_times import MeasuredStep, measured_workers, read_times
from holdfast.observe.measured_trace import measured_trace
from holdfast.observe.quantities import count, format_numbers
from holdfast.observe.run.load import RunFollower
from holdfast.observe.run_directory import write_whole

LAST = 10
SHOWN = ("fault", "lost", "decision", "recovery", "plan", "checkpoint", "end")


def write_trace(run_dir: Path, steps: str, out: Path) -> None:
    follower = read_run(run_dir)
    first, end = parse_steps(steps, follower.model.next_step)
    found = read_times(run_dir, first, end)
    if not any(found.values()):
        raise HoldfastError(_why_none(run_dir, first, end))
    run = follower.model
    plan = follower.plan(run.plan_file)
    text = measured_trace(
        found,
        roles=_roles(follower, found),
        units=[unit.name for unit in plan.units] if plan is not None else [],
        moments=[(note.at_s, note.kind, note.text) for note in run.notes if note.kind in SHOWN],
        title=f"{run_dir}, steps {first} to {end - 1}",
    )
    write_whole(out, text)
    numbers = {step.step for several in found.values() for step in several}
    workers = sum(bool(several) for several in found.values())
    print(f"{out}: steps {format_numbers(numbers)} of {count(workers, 'worker')}")
    if missing := (end - first) - len(numbers):
        print(f"{count(missing, 'step')} of {first}:{end} are not kept; [view] says which are")
    print("open it at https://ui.perfetto.dev or chrome://tracing")


def parse_steps(text: str, next_step: int) -> tuple[int, int]:
    """`100:110`, `100:`, `:110` or `100`: from and to before."""
    if not text:
        return max(0, next_step - LAST), max(1, next_step)
    match = re.fullmatch(r"(\d*)(:?)(\d*)", text)
    if match is None or text == ":":
        raise HoldfastError(f"--steps {text!r} are no steps; give them like 100:110")
    first = int(match[1] or 0)
    end = int(match[3] or max(next_step, first + 1)) if match[2] else first + 1
    if end <= first:
        raise HoldfastError(f"--steps {text}: {end} does not come after {first}")
    return first, end


def _roles(follower: RunFollower, found: Mapping[str, Sequence[MeasuredStep]]) -> dict[str, str]:
    """Each worker's in the plan of its last step that is shown."""
    roles: dict[str, str] = {}
    for worker, steps in found.items():
        plan = follower.plan_of_epoch(steps[-1].epoch) if steps else None
        if plan is not None and worker in plan.seats:
            roles[worker] = plan.role(worker)
    return roles


def _why_none(run_dir: Path, first: int, end: int) -> str:
    if not measured_workers(run_dir):
        return (
            f"{run_dir}: no times of actions were written; [view] trace_every = 1 in the job file "
            f"asks for them"
        )
    kept = [step.step for several in read_times(run_dir, 0, 2**62).values() for step in several]
    span = f"{min(kept)} to {max(kept)}" if kept else "none"
    return (
        f"{run_dir}: of steps {first} to {end - 1} no times are kept, there are {span}; "
        f"[view] trace_limit_bytes keeps more"
    )


def send_incidents(run_dir: Path, endpoint: str) -> None:
    from holdfast.observe.incident_spans import open_exporter

    run = read_run(run_dir).model
    exporter = open_exporter(endpoint)
    number = exporter.export(run)
    exporter.close()
    print(f"{count(number, 'incident')} sent to {endpoint}")
