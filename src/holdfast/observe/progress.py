"""The events of a job, each in a line. Which of them are shown: `screen_lines`."""

from holdfast.observe.events import (
    CheckpointWritten,
    CoordinatorStarted,
    Decided,
    Evaluated,
    Event,
    FaultInjected,
    HostJoined,
    IdleNodeLost,
    JobEnded,
    JobStarted,
    PlanChanged,
    PlanConsidered,
    PlanStarted,
    ProtectionChanged,
    ProtectionLacking,
    ProtectionProvided,
    Recovered,
    Restored,
    SlownessJudged,
    StepDone,
    StepSkipped,
    StopRequested,
    WorkerLost,
    WorkersReady,
    WritingResumed,
    WritingStopped,
)
from holdfast.observe.quantities import count, describe_protection, format_bytes, format_seconds
from holdfast.observe.run.incidents import NODE_WIDE
from holdfast.plan.workers import node_of

_INTERNAL = ("order", "round")
"""Details of decisions that a line for people leaves out."""


def describe_event(event: Event) -> str:
    """One line for everything but a step; empty where there is nothing to tell."""
    match event:
        case JobStarted():
            return (
                f"{event.name}: {event.model} ({event.num_parameters:,} parameters), "
                f"{count(event.steps, 'step')} of {count(event.micro_batches, 'micro-batch')}, "
                f"{count(event.num_workers, 'worker')}; writing to {event.run_dir}"
            )
        case ProtectionProvided(reason=reason, notes=notes):
            return "\n".join([f"protection: {reason}", *(f"note: {note}" for note in notes)])
        case ProtectionLacking(reason=reason):
            return f"lacking: {reason}"
        case ProtectionChanged(against=against, not_against=not_against):
            return describe_protection(against, not_against)
        case HostJoined(reason=reason):
            return f"host: {reason}"
        case PlanStarted():
            why = f" ({event.reason})" if event.reason.startswith("from the start") else ""
            return f"plan: {event.shape}{why}"
        case WorkersReady():
            return f"workers ready after {event.seconds:.1f} s"
        case StepSkipped():
            return f"step {event.step + 1} was not applied: {event.reason}"
        case Evaluated():
            return describe_evaluation(event)
        case PlanChanged():
            return describe_change(event)
        case Recovered():
            return describe_recovery(event)
        case Restored():
            return describe_restore(event)
        case CheckpointWritten(error=error) if error:
            return f"checkpoint of step {event.step} not written, will be tried again: {error}"
        case CheckpointWritten():
            return f"checkpoint: {event.path} ({event.reason})"
        case WritingStopped(reason=reason):
            if reason.startswith("the rendezvous"):
                return f"nothing is decided for now ({reason}): training goes on"
            return f"the disk takes nothing ({reason}): training goes on, lines wait in memory"
        case WritingResumed(seconds=seconds, lines=lines):
            waited = f"{count(lines, 'line')} waited {format_seconds(seconds)}"
            return f"the disk takes lines again: {waited}"
        case Decided():
            return "" if _is_detail(event) else event.reason
        case PlanConsidered():
            return describe_considered(event)
        case SlownessJudged():
            return describe_slowness(event)
        case WorkerLost() | IdleNodeLost():
            return describe_loss(event)
        case CoordinatorStarted(term=term, reason=reason):
            return f"coordinator {term} took over: {reason}"
        case FaultInjected():
            return f"fault on purpose: {event.fault} for {event.target}"
        case StopRequested():
            return f"{event.signal}: {event.reason}"
        case JobEnded(outcome="stopped"):
            return f"stopped {after_steps(event.next_step)}: {event.reason}"
    return ""


def describe_loss(event: WorkerLost | IdleNodeLost) -> str:
    match event:
        case WorkerLost(worker=worker, kind=kind):
            who = node_of(worker) if kind in NODE_WIDE else worker
        case IdleNodeLost(node=who):
            pass
    return f"{who} lost: {event.reason}"


def describe_slowness(event: SlownessJudged) -> str:
    who = ", ".join(event.who) or "all workers"
    match event.verdict:
        case "slow":
            return f"{who} is slow, {event.factor:.2f} times: {event.reason}"
        case "suspect":
            return f"{who} may be slow ({event.confidence:.0%} sure): {event.reason}"
        case "recovered":
            return f"{who} is not slow any more: {event.reason}"
        case "cleared":
            return f"{who} is not slow: {event.reason}"
    return event.reason


def _is_detail(event: Decided) -> bool:
    """How a decision was reached is in the journal; what came of it has a line of its own."""
    is_verdict = "worker" in event.details and " is out: " in event.reason
    return is_verdict or not event.details or not event.details.keys().isdisjoint(_INTERNAL)


def describe_change(event: PlanChanged) -> str:
    words = [
        f"paused {format_seconds(event.stall_s)}",
        f"{format_bytes(event.bytes_moved)} moved",
        f"{event.groups_kept} of {count(event.groups_kept + event.groups_made, 'group')} kept",
    ]
    who = [
        f"{', '.join(names)} {verb}"
        for names, verb in ((event.joining, "joined"), (event.leaving, "left"))
        if names
    ]
    what = f"{' and '.join(who)}: " if who else "changed to "
    return f"{after_steps(event.step)}: {what}{event.shape} ({', '.join(words)})"


def describe_considered(event: PlanConsidered) -> str:
    what = f"{event.strategy}: {event.shape}" if event.entered else "the plan stays"
    return f"planner, as {event.asked}: {what} ({event.reason})"


def describe_recovery(event: Recovered) -> str:
    without = f" without {', '.join(event.lost)}" if event.lost else ""
    again = (
        f", {count(event.micro_batches, 'micro-batch')} done again" if event.micro_batches else ""
    )
    return (
        f"{after_steps(event.step)}: recovered{without}: {event.shape} "
        f"(workers stopped {format_seconds(event.stall_s)}{again})"
    )


def describe_restore(event: Restored) -> str:
    origins = ", ".join(f"{format_bytes(n)} from {o}" for o, n in event.bytes_by_origin.items())
    if event.goes_on:
        return (
            f"goes on {after_steps(event.step)} with {event.shape}: {event.reason} ({origins}, "
            f"loaded in {format_seconds(event.load_s)}); "
            f"{count(event.steps_redone, 'step')} done again"
        )
    return (
        f"restored the state {after_steps(event.step)}, with {event.shape} "
        f"({count(event.steps_redone, 'step')} done again, {origins}, loaded in "
        f"{format_seconds(event.load_s)})"
    )


def describe_evaluation(event: Evaluated) -> str:
    loss = "not finite" if event.loss is None else f"{event.loss:.4f}"
    took = f"{event.tokens:,} tokens, {format_seconds(event.seconds)}"
    return f"validation {after_steps(event.step)}: loss {loss} ({took})"


def after_steps(number: int) -> str:
    """Steps count from 0, so the number of the next step is how many are done."""
    return f"after {count(number, 'step')}"


def describe_step(step: StepDone, num_steps: int) -> str:
    width = len(str(num_steps))
    loss = "   inf" if step.loss is None else f"{step.loss:6.4f}"
    return (
        f"step {step.step + 1:{width}}/{num_steps}  loss {loss}  "
        f"{step.tokens_per_s:8,.0f} tokens/s  {format_seconds(step.step_time_s)}"
    )
