"""A report for people: lines for the end of a run, tables for `holdfast report`."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from holdfast.observe.fitting_table import FittingTable
from holdfast.observe.goodput import BUCKET_OF
from holdfast.observe.quantities import (
    count,
    describe_protection,
    format_bytes,
    format_seconds,
    format_share,
)
from holdfast.observe.report import PRODUCTIVE, IncidentSummary, RunReport

MAX_INCIDENTS = 40
"""In a table; the rest is in the JSON form."""
MAX_CAUSES = 4
"""In a line."""


def describe_report(report: RunReport) -> str:
    """What a run came to, in one line."""
    words = [f"{report.outcome}: {count(report.steps, 'step')}"]
    if report.first_loss is not None and report.final_loss is not None:
        words.append(f"loss {report.first_loss:.4f} -> {report.final_loss:.4f}")
    if report.eval_loss is not None and report.eval_step is not None:
        words.append(f"validation loss {report.eval_loss:.4f} after {report.eval_step}")
    if report.median_step_s is not None and report.tokens_per_s is not None:
        words.append(f"median step {format_seconds(report.median_step_s)}")
        words.append(f"{report.tokens_per_s:,.0f} tokens/s")
    return ", ".join([*words, f"{report.seconds:.1f} s in all"])


def report_lines(report: RunReport) -> list[str]:
    """The last lines of a run: the outcome, what it survived, where the time went."""
    return [
        describe_report(report),
        *_facts(report),
        *_time_line(report),
    ]


def _facts(report: RunReport) -> Iterator[str]:
    yield from _failure_lines(report)
    yield from _protection_lines(report)
    yield from _copy_lines(report)


def _protection_lines(report: RunReport) -> Iterator[str]:
    """What it was protected against in the end, and what it had to do without."""
    if report.protected_against or report.not_protected_against:
        line = describe_protection(report.protected_against, report.not_protected_against)
        changes = count(report.protection_changes, "change")
        yield f"{line} ({changes})" if report.protection_changes else line
    for line in report.lacking:
        yield f"lacking: {line}"


def _copy_lines(report: RunReport) -> Iterator[str]:
    """What the snapshots in memory came to."""
    if report.copied_in_bubbles is not None:
        yield (
            f"snapshots: {format_bytes(report.copied_bytes)} copied, "
            f"{format_share(report.copied_in_bubbles)} of it in bubbles; training waited "
            f"{format_seconds(report.copy_wait_s)} for copies, {format_share(report.copy_cost)} of "
            f"the time of its steps"
        )


def _failure_lines(report: RunReport) -> Iterator[str]:
    restores = [restore for restore in report.restores if not restore.goes_on]
    if report.failures or report.recoveries or restores:
        kinds = ", ".join(f"{number} {kind}" for kind, number in report.failures.items())
        back = ", ".join(report.not_back)
        words = [
            count(len(report.recoveries), "recovery"),
            *([count(len(restores), "restore")] if restores else []),
            f"longest stall {format_seconds(report.longest_stall_s)}",
            f"{count(report.micro_batches_redone, 'micro-batch')} and "
            f"{count(report.steps_redone, 'step')} done again",
            f"not back: {back}" if back else "all workers are back",
        ]
        yield f"failures: {kinds or 'none'}; {', '.join(words)}"
    if went_on := [restore for restore in report.restores if restore.goes_on]:
        again = count(sum(restore.steps_redone for restore in went_on), "step")
        times = count(len(went_on), "time")
        yield f"went on {times} where the run before had ended, {again} done again"
    if report.changes:
        pause = max(change.stall_s for change in report.changes)
        yield (
            f"{count(len(report.changes), 'change')} of plan by joins or on purpose, longest pause "
            f"{format_seconds(pause)}, {format_bytes(report.bytes_moved)} moved"
        )


def _time_line(report: RunReport) -> Iterator[str]:
    lost = [(seconds, cause) for cause, seconds in report.time_s.items() if cause != PRODUCTIVE]
    if not report.steps or not lost:
        return
    most = sorted(lost, reverse=True)
    words = [f"{cause} {format_seconds(seconds)}" for seconds, cause in most[:MAX_CAUSES]]
    if rest := sum(seconds for seconds, _ in most[MAX_CAUSES:]):
        words.append(f"other {format_seconds(rest)}")
    productive = report.time_s.get(PRODUCTIVE, 0.0)
    yield (
        f"goodput {format_share(report.goodput)}: {format_seconds(productive)} of "
        f"{format_seconds(report.seconds)} productive; lost to {', '.join(words)}"
    )


def render_report(report: RunReport) -> Group:
    parts: list[RenderableType] = [
        Text(f"{report.name}: {report.model} ({report.num_parameters:,} parameters)", style="bold"),
        Text(f"{describe_report(report)}"),
    ]
    if report.reason:
        parts.append(Text(f"why it ended: {report.reason}"))
    parts += [Text(line) for line in _facts(report)]
    if report.incidents:
        parts += [Text(), _incident_table(report.incidents)]
    if len(report.incidents) > MAX_INCIDENTS:
        parts.append(Text(f"... of {len(report.incidents)}; --json has them all", style="dim"))
    parts += [Text(), _time_table(report)]
    checkpoints = count(report.checkpoints, "checkpoint")
    failed = f", {report.checkpoints_failed} could not be written"
    parts.append(Text(f"{checkpoints} written{failed if report.checkpoints_failed else ''}"))
    parts.append(Text(f"Everything about it is in {report.run_dir}"))
    return Group(*parts)


def _incident_table(incidents: tuple[IncidentSummary, ...]) -> FittingTable:
    rows = [
        (
            f"{incident.at_s:.1f} s",
            str(incident.step),
            f"{incident.what}: {incident.reason}" if incident.reason else incident.what,
            describe_outcome(incident),
            format_seconds(incident.stall_s),
            "not yet" if incident.whole_after_s is None else format_seconds(incident.whole_after_s),
        )
        for incident in incidents[:MAX_INCIDENTS]
    ]
    return FittingTable(
        ("at", "step", "what was lost", "what was done", "stall", "whole after"),
        rows,
        title="incidents",
        numbers=("at", "step", "stall", "whole after"),
        wide=("what was lost", "what was done"),
    )


def describe_outcome(incident: IncidentSummary) -> str:
    match incident.kind:
        case "recovery":
            again = count(incident.micro_batches, "micro-batch")
            return f"the step was completed with {incident.shape}, {again} done again"
        case "restore":
            return f"a snapshot was loaded, {count(incident.steps_redone, 'step')} done again"
        case "run":
            return f"the next run went on, {count(incident.steps_redone, 'step')} done again"
        case "coordinator":
            return "another one went on from its journal; no step waited"
        case "joiner":
            return "it had no role yet; nothing had to be done"
    return "nothing yet"


def _time_table(report: RunReport) -> Table:
    table = Table(title="where the time went", title_justify="left")
    table.add_column("cause")
    table.add_column("bucket")
    table.add_column("time", justify="right")
    table.add_column("share", justify="right")
    for cause, seconds in report.time_s.items():
        share = seconds / report.seconds if report.seconds else 0.0
        bucket = "GOODPUT" if cause == PRODUCTIVE else BUCKET_OF[cause]
        table.add_row(cause, bucket, format_seconds(seconds), format_share(share))
    total = sum(report.time_s.values())
    table.add_section()
    table.add_row("all", "", format_seconds(total), format_share(total / (report.seconds or 1)))
    return table
