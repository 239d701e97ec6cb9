"""From what the coordinator found out to events as the run log has them."""

from collections.abc import Mapping
from math import isfinite

from holdfast.control.ending import describe_skipped
from holdfast.control.job_events import (
    AllReady,
    EpochEntered,
    IdleNodeDied,
    JobEvent,
    PlanWeighed,
    ProtectionFound,
    SeatlessLost,
    SlownessFound,
    StepCompleted,
    StepsUnrecorded,
    WorkerBlamed,
)
from holdfast.control.report import Member
from holdfast.control.worker_reports import ChangeReport, RecoveryReport, RestoreReport
from holdfast.engine.group_keys import needed_groups
from holdfast.observe.events import (
    Decided,
    Evaluated,
    Event,
    IdleNodeLost,
    PlanChanged,
    ProtectionChanged,
    Recovered,
    Restored,
    SlownessJudged,
    StepDone,
    StepSkipped,
    WorkerFailed,
    WorkerLost,
    WorkersReady,
    failure_kind,
)
from holdfast.observe.plan_decisions import considered
from holdfast.observe.run_directory import METRICS, plan_name
from holdfast.observe.timeline_view import describe_shape
from holdfast.plan.plan import Plan

MAX_REASONS = 20


class JobLines:
    def __init__(self, backend: str, plans: Mapping[int, Plan], num_decisions: int = 0) -> None:
        """`plans`: by epoch, kept up to date by others; `num_decisions` about plans that were
        made before.
        """
        self._backend, self._plans = backend, plans
        self._num_decisions = num_decisions

    def events(
        self, event: JobEvent, seconds: float, snapshot_step: int | None = None
    ) -> list[Event]:
        """`seconds` since the run began, `snapshot_step` of the newest snapshot in memory."""
        match event:
            case StepCompleted():
                return step_events(event, snapshot_step)
            case StepsUnrecorded():
                return [unrecorded_event(event)]
            case SlownessFound():
                return [slowness_event(event)]
            case AllReady(pids=pids):
                return [WorkersReady(seconds=seconds, pids=pids)]
            case WorkerBlamed(worker=worker, role=role, step=step, why=why):
                return [WorkerFailed(worker=worker, role=role, step=step, reason=why)]
            case SeatlessLost(member=member, reason=reason):
                return [lost_worker(member, reason)]
            case IdleNodeDied(node=node, reason=reason):
                return [IdleNodeLost(node=node, reason=reason)]
            case ProtectionFound(protection=found):
                return [
                    ProtectionChanged(
                        reason=found.reason, against=found.against, not_against=found.not_against
                    )
                ]
            case PlanWeighed():
                self._num_decisions += 1
                return [considered(event, self._num_decisions)]
            case EpochEntered(reports=reports):
                kinds = [type(report) for report in reports.values()]
                if RestoreReport in kinds:
                    return [self._restored(event)]
                return [self._changed(event) if ChangeReport in kinds else self._recovered(event)]

    def _restored(self, event: EpochEntered) -> Event:
        plan = self._plans[event.number]
        reports = [r for r in event.reports.values() if isinstance(r, RestoreReport)]
        origins: dict[str, int] = {}
        for report in reports:
            for origin, size in report.bytes_by_origin.items():
                origins[origin] = origins.get(origin, 0) + size
        reasons = dict.fromkeys(reason for report in reports for reason in report.reasons)
        return Restored(
            reason=event.reason,
            epoch=event.number,
            step=reports[0].step,
            shape=describe_shape(plan),
            num_workers=len(plan.workers),
            workers=plan.workers,
            steps_redone=event.steps_redone,
            goes_on=event.before is None,
            stall_s=max(report.stall_s for report in reports),
            load_s=max(report.load_s for report in reports),
            bytes_by_origin=origins,
            sources=tuple(reasons)[:MAX_REASONS],
            file=plan_name(event.number),
        )

    def _recovered(self, event: EpochEntered) -> Event:
        plan = self._plans[event.number]
        found = [r for r in event.reports.values() if isinstance(r, RecoveryReport)]
        return Recovered(
            reason=event.reason,
            epoch=event.number,
            step=found[0].step,
            shape=describe_shape(plan),
            num_workers=len(plan.workers),
            lost=event.lost,
            stall_s=max(report.stall_s for report in found),
            micro_batches=max(report.num_micro_batches for report in found),
            num_followed=sum(report.rolled_forward for report in found),
            groups_kept=sum(report.num_groups_kept for report in found),
            groups_made=sum(report.num_groups_made for report in found),
            file=plan_name(event.number),
        )

    def _changed(self, event: EpochEntered) -> Event:
        assert event.before is not None
        before, plan = self._plans[event.before], self._plans[event.number]
        old, new = before.workers, plan.workers
        changes = {w: r for w, r in event.reports.items() if isinstance(r, ChangeReport)}
        # A joiner has waited, too, but kept no other from training.
        stalls = [report.stall_s for worker, report in changes.items() if worker in old]
        kept, made = count_groups(before, plan, self._backend)
        return PlanChanged(
            reason=event.reason,
            epoch=event.number,
            step=next(iter(changes.values())).step,
            shape=describe_shape(plan),
            num_workers=len(new),
            joining=tuple(name for name in new if name not in before.seats),
            leaving=tuple(name for name in old if name not in plan.seats),
            stall_s=max(stalls, default=0.0),
            bytes_moved=sum(report.bytes_received for report in changes.values()),
            bytes_from_memory=sum(report.bytes_from_memory for report in changes.values()),
            groups_kept=kept,
            groups_made=made,
            file=plan_name(event.number),
        )


def unrecorded_event(event: StepsUnrecorded) -> Event:
    """For people: the state has these steps, metrics.jsonl has not."""
    return Decided(
        reason=f"steps {event.first} to {event.last} were done, but are not in {METRICS}: the "
        "processes that knew their loss and times died before they were written",
        details={"first_unrecorded": str(event.first), "last_unrecorded": str(event.last)},
    )


def slowness_event(event: SlownessFound) -> Event:
    verdict = event.verdict
    return SlownessJudged(
        verdict=verdict.kind,
        who=verdict.who,
        factor=round(verdict.factor, 4),
        confidence=round(verdict.confidence, 4),
        step=verdict.step,
        probed=event.is_probed,
        reason=verdict.reason,
    )


def step_events(event: StepCompleted, snapshot_step: int | None = None) -> list[Event]:
    first, seconds = event.report, event.seconds
    done = StepDone(
        step=first.step,
        epoch=first.epoch,
        loss=_finite(first.loss),
        norm=_finite(first.norm),
        tokens=first.num_tokens,
        tokens_per_s=first.num_tokens / seconds,
        step_time_s=seconds,
        learning_rate=first.learning_rate,
        applied=first.applied,
        snapshot_step=snapshot_step,
        copied_bytes=event.copied.num_bytes,
        copied_in_bubbles=event.copied.in_bubbles,
        copy_wait_s=event.copied.wait_s,
        eval_loss=_finite(first.eval_loss) if first.eval_loss is not None else None,
        eval_s=first.eval_s,
    )
    events: list[Event] = [done]
    if first.eval_loss is not None:
        before = (first.step, first.eval_loss, first.eval_tokens, first.eval_s)
        events = [evaluated_event(*before), done]
    if not first.applied:
        events.append(StepSkipped(step=first.step, reason=describe_skipped(first)))
    return events


def evaluated_event(step: int, loss: float, tokens: int, seconds: float) -> Evaluated:
    """`step`: how many are done in the state that was evaluated."""
    return Evaluated(step=step, loss=_finite(loss), tokens=tokens, seconds=seconds)


def lost_worker(member: Member, reason: str) -> WorkerLost:
    return WorkerLost(
        worker=member.name,
        incarnation=member.incarnation,
        kind=failure_kind(reason),
        reason=reason,
    )


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


def count_groups(before: Plan, after: Plan, backend: str) -> tuple[int, int]:
    """(kept, made): groups of the new plan that were there, and that were not."""

    def groups(plan: Plan) -> set[object]:
        return {key for worker in plan.workers for key in needed_groups(plan, worker, backend)}

    old, new = groups(before), groups(after)
    return len(old & new), len(new - old)
