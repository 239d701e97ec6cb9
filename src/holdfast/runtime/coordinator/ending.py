"""How the job ends, and what is said of it: once, whatever comes after."""

from collections.abc import Callable
from pathlib import Path

from holdfast.observe import events
from holdfast.observe.progress import after_steps
from holdfast.observe.run_directory import log_name
from holdfast.runtime.coordinator.failures import Failure
from holdfast.runtime.coordinator.giving_up import GivingUp
from holdfast.runtime.launch.launcher_messages import CoordinatorSpec, Ending
from holdfast.runtime.record.run_log import RunLog

GRACE_S = 10.0
"""How much longer than its workers the coordinator waits for any sign of progress."""


class JobEnding:
    def __init__(
        self,
        spec: CoordinatorSpec,
        chronicle: RunLog,
        now_ms: int,
        on_end: Callable[[], object],
    ) -> None:
        self._spec, self._chronicle, self._on_end = spec, chronicle, on_end
        config = spec.config
        self.giving_up = GivingUp(
            is_strict=config.recovery.mode == "off",
            patience_ms=int(1000 * (config.job.timeout_s + GRACE_S)),
            now_ms=now_ms,
        )
        self._last_words = ""
        """Of the last worker that said why it ended."""
        self.ending: Ending | None = None

    @property
    def has_failed(self) -> bool:
        return self.ending is not None and self.ending.outcome == "failed"

    def end(self, outcome: str, reason: str) -> None:
        if self.ending is not None:
            return
        finished = list(self._chronicle.finished.values())
        self.ending = Ending(
            outcome=outcome,
            reason=reason,
            staging_bytes=max((told.staging_bytes for told in finished), default=0),
            final_bytes=sum(told.final_bytes for told in finished),
            profile=self._chronicle.profile(),
        )
        self._on_end()

    def at(self, version: int) -> tuple[str, str]:
        """Outcome and reason of a job that is over with this version."""
        steps, stop = self._spec.config.job.steps, self._chronicle.past.stop
        if version < steps:
            return "stopped", f"{stop.reason if stop else 'asked for'}, at a step boundary"
        return "finished", f"all {steps} steps are done"

    def note_last_words(self, worker: str, how: str) -> None:
        self._last_words = f"; {worker} {how}"

    def fail(self, reason: str) -> None:
        self.end("failed", reason + self._last_words)

    def give_up_if_due(self, now_ms: int) -> None:
        step = self._chronicle.ledger.next_step
        cause = self.giving_up.cause(now_ms)
        if cause is not None and self.ending is None:
            self._blame(cause, step)
        elif self.giving_up.is_stuck(now_ms):
            self.end("failed", f"nobody has got on for a long time, {after_steps(step)}")

    def _blame(self, cause: Failure, step: int) -> None:
        past = self._chronicle.past
        plan = past.plans[past.last.number] if past.last is not None else past.wanted
        role = plan.role(cause.worker) if cause.worker in plan.seats else "no role yet"
        self._chronicle.tell(
            [events.WorkerFailed(worker=cause.worker, role=role, step=step, reason=cause.why)]
        )
        log = Path(self._spec.run_dir) / log_name(cause.worker)
        self.end(
            "failed",
            f"worker {cause.worker} ({role}) {cause.why}, {after_steps(step)}; its log is {log}",
        )
