"""What `holdfast plan show` does."""

import os
import sys
from pathlib import Path

import msgspec
from rich.console import Console

from holdfast.cli.plan import CostOptions, ShapeOptions, ShowOutput, WhatIf
from holdfast.cli.plan_inputs import (
    build_plan,
    build_profile,
    describe_costs,
    parse_slow,
)
from holdfast.cli.what_if import change_routes, lose_workers
from holdfast.errors import HoldfastError
from holdfast.observe.timeline_html import timeline_html
from holdfast.observe.timeline_json import timeline_numbers
from holdfast.observe.timeline_svg import timeline_svg
from holdfast.observe.timeline_terminal import draw
from holdfast.observe.timeline_view import Notes, TimelineView, describe_shape, view_of
from holdfast.observe.trace import timeline_trace
from holdfast.plan.action_lists import lines_of, lower_timeline
from holdfast.plan.check import check_plan
from holdfast.plan.plan import Plan, Stage
from holdfast.plan.profile import slow_workers
from holdfast.plan.text import format_plan
from holdfast.plan.timeline import Timeline, evaluate

FORMATS = (".svg", ".html", ".json", ".toml")
PIPE_WIDTH = 120
"""Characters a line may have where the output is no terminal."""


def show_plan(shape: ShapeOptions, costs: CostOptions, what_if: WhatIf, output: ShowOutput) -> None:
    _check_output(output)
    whole = build_plan(shape)
    plan, lost = lose_workers(whole, what_if.lost)
    plan = change_routes(plan, what_if.route)
    profile = build_profile(costs, shape, plan, parse_slow(what_if.slow))
    check_plan(plan, profile)
    timeline = evaluate(plan, profile)
    notes = Notes(
        title=_title(whole, lost, what_if),
        time_unit=costs.time_unit,
        costs=describe_costs(costs, shape, profile),
        slow=slow_workers(plan, profile),
        lost=lost,
        critical=output.critical,
        max_rows=output.rows,
    )
    _show(timeline, notes, output)


def _show(timeline: Timeline, notes: Notes, output: ShowOutput) -> None:
    view = None if output.json and not output.out else view_of(timeline, notes)
    for path in output.out:
        if view is not None:
            path.write_text(_render(path, timeline, view), encoding="utf-8")
    if output.json:
        print_json(timeline_numbers(timeline, notes))
    elif output.actions:
        for worker, line in lines_of(timeline.layout, lower_timeline(timeline)):
            print(f"{worker}  {line}")
    elif view is not None:
        draw(view, make_console())
        for path in output.out:
            print(f"wrote {path}")


def _check_output(output: ShowOutput) -> None:
    """Before any work: a wrong ending should not cost the user a minute."""
    for path in output.out:
        if path.suffix not in FORMATS:
            raise HoldfastError(f"--out {path}: the ending must be one of {' '.join(FORMATS)}")
    if output.rows < 1:
        raise HoldfastError(f"--rows {output.rows}: at least 1 is needed")


def _render(path: Path, timeline: Timeline, view: TimelineView) -> str:
    match path.suffix:
        case ".svg":
            return timeline_svg(view)
        case ".html":
            return timeline_html(view)
        case ".json":
            return timeline_trace(timeline, view.title, view.time_unit)
        case _:
            return format_plan(timeline.layout.plan)


def _title(plan: Plan, lost: tuple[Stage, ...], what_if: WhatIf) -> str:
    words = [f"{describe_shape(plan)}, {plan.schedule.kind}"]
    if lost:
        words.append(f"{', '.join(what_if.lost)} lost, its micro-batches rerouted")
    if what_if.route:
        words.append("rerouted")
    return "; ".join(words)


def print_json(document: object) -> None:
    print(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def make_console() -> Console:
    """As wide as the terminal; wide enough for a picture where there is none."""
    known = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return Console(highlight=False, width=None if known else PIPE_WIDTH)
