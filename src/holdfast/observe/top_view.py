"""A job in the terminal, like htop: where it is, who is there, where the time goes."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from holdfast.observe.quantities import count, format_bytes, format_seconds, format_share
from holdfast.observe.run.model import RunModel

BAR_WIDTH = 40
NUM_NOTES = 8
MAX_WORKERS = 64
STATE_STYLES = {"alive": "green", "lost": "bold red", "hung": "bold red", "left": "dim"}
JOB_STYLES = {"training": "green", "finished": "green", "failed": "bold red", "silent": "red"}


def render_top(run: RunModel, data: Mapping[str, Any]) -> Group:
    """`data`: of the run, for the page."""
    parts: list[RenderableType] = [*_head(data), Text(), _workers(data), *_goodput(data)]
    notes = [note for note in run.notes if note.kind != "decision"][-NUM_NOTES:]
    if notes:
        parts.append(Text())
    for note in notes:
        parts.append(Text(f"{note.at_s - run.started_s:8.1f} s  step {note.step}  {note.text}"))
    return Group(*parts)


def _head(data: Mapping[str, Any]) -> list[Text]:
    state, steps = data["state"], data["num_steps"] or 1
    done = round(BAR_WIDTH * min(1.0, data["next_step"] / steps))
    first = Text(f"{data['name']}  ", style="bold")
    first.append(state, style=JOB_STYLES.get(state, "yellow"))
    first.append(f"  {data['shape']}  {format_seconds(data['now_s'])} in all")
    second = f"step {data['next_step']}/{steps} [{'#' * done}{'-' * (BAR_WIDTH - done)}]"
    if data["loss"] is not None:
        second += f"  loss {data['loss']:.4f}"
    if data["step_time_s"]:
        second += f"  {format_seconds(data['step_time_s'])} a step"
        second += f"  {data['tokens_per_s']:,.0f} tokens/s"
    failures = ", ".join(f"{n} {kind}" for kind, n in data["failures"].items()) or "none"
    third = f"failures: {failures}; longest stall {format_seconds(data['longest_stall_s'])}"
    if data["steps_redone"]:
        third += f"; {count(data['steps_redone'], 'step')} done again"
    third += f"; {count(data['checkpoints']['number'], 'checkpoint')}"
    if data["snapshot"]["step"] is not None:
        third += f"; snapshot of step {data['snapshot']['step']} in memory"
    reason = [Text(f"why: {data['reason']}")] if data["reason"] else []
    return [first, Text(second), Text(third), *reason]


def _workers(data: Mapping[str, Any]) -> Table:
    columns = ("worker", "role", "state", "since", "speed", "memory", "process", "failures")
    table = Table(*columns, box=None)
    shown = sorted(data["workers"], key=lambda worker: worker["state"] == "alive")
    for worker in shown[:MAX_WORKERS]:
        state = Text(worker["state"], style=STATE_STYLES.get(worker["state"], "yellow"))
        if worker["state"] == "lost":
            state.append(f" ({worker['failure']})")
        if worker["state"] == "slow":
            state.append(f" ({worker['slow']:.1f} times)")
        since = format_seconds(max(0.0, data["now_s"] - worker["since_s"]))
        table.add_row(
            worker["name"],
            worker["role"] or "-",
            state,
            since,
            f"{worker['speed']:.2f}" if worker["speed"] else "-",
            format_bytes(worker["memory_bytes"]) if worker["memory_bytes"] else "-",
            str(worker["process"]),
            str(worker["num_failures"] or ""),
        )
    if len(shown) > MAX_WORKERS:
        table.add_row(f"... {len(shown) - MAX_WORKERS} more are alive")
    return table


def _goodput(data: Mapping[str, Any]) -> list[Text]:
    parts = sorted(data["goodput"]["parts"], key=lambda part: -part["seconds"])
    line = Text(f"goodput {format_share(data['goodput']['ratio'])}", style="bold")
    for part in parts:
        if part["seconds"] >= 0.001:
            line.append(f"  {part['cause']} {format_seconds(part['seconds'])}", style="not bold")
    return [Text(), line]
