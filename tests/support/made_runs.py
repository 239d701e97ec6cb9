"""Runs made of events alone, for what shows or sums them up."""

from datetime import UTC, datetime
from pathlib import Path

import msgspec

from holdfast.observe.events import (
    CheckpointWritten,
    CoordinatorStarted,
    Decided,
    Event,
    FaultInjected,
    JobEnded,
    PlanStarted,
    Restored,
    StepDone,
    WorkerLost,
    WorkerRestarted,
    WorkersReady,
)
from holdfast.observe.journal import Journal
from holdfast.observe.run.model import RunModel
from holdfast.observe.run_directory import create_run_directory
from holdfast.plan.build import regular_plan
from holdfast.plan.text import format_plan
from support.job_events import CHANGED, RECOVERED, STARTED, step
from support.random_plans import make_units

START_S = 1_000_000.0
WORKERS = ("n0.g0", "n0.g1", "n1.g0", "n1.g1")
PLAN = regular_plan(make_units(4), replicas=2, stages=2, micro_batches=4, devices_per_node=2)


class MadeRun:
    """Writes down what happens, at the times it is told; steps take `step_s` each."""

    def __init__(self, step_s: float = 0.1) -> None:
        self.now_s, self.step_s = START_S, step_s
        self.next_step, self.epoch = 0, 1
        self.events: list[tuple[float, Event]] = []

    def tell(self, event: Event, after_s: float = 0.0) -> "MadeRun":
        self.now_s += after_s
        self.events.append((self.now_s, event))
        return self

    def start(self) -> "MadeRun":
        self.tell(msgspec.structs.replace(STARTED, steps=1000, num_workers=4))
        shape, file = "2 replicas x 2 stages", "plans/epoch-1.toml"
        first = PlanStarted(epoch=1, step=self.next_step, shape=shape, num_workers=4, file=file)
        self.tell(first, 0.2)
        pids = {name: 100 + number for number, name in enumerate(WORKERS)}
        return self.tell(WorkersReady(seconds=0.5, pids=pids), 0.3)

    def steps(self, number: int) -> "MadeRun":
        for _ in range(number):
            self.tell(self._step_done(), self.step_s)
        return self

    def _step_done(self) -> StepDone:
        loss = 5.0 / (1 + 0.01 * self.next_step)
        self.next_step += 1
        return step(self.next_step - 1, self.step_s, loss)

    def lose(self, *workers: str, kind: str = "killed", detect_s: float = 0.04) -> "MadeRun":
        """Found lost, decided, recovered, and the step in flight is done."""
        for worker in workers:
            lost = WorkerLost(worker=worker, incarnation=1, kind=kind, reason="was killed by X")
            self.tell(lost, detect_s)
            detect_s = 0.0
        self.tell(Decided(reason="round: it is out", details={"round": "2"}))
        self.tell(Decided(reason="order: 2 again", details={"order": "2"}), 0.02)
        self.epoch += 1
        changed = {"step": self.next_step, "lost": workers, "file": "plans/epoch-1.toml"}
        self.tell(msgspec.structs.replace(RECOVERED, epoch=self.epoch, **changed), 0.15)
        return self.tell(self._step_done())

    def back(self, *workers: str, stall_s: float = 0.02) -> "MadeRun":
        for worker in workers:
            self.tell(WorkerRestarted(worker=worker, incarnation=2), 0.01)
        self.epoch += 1
        changed = {"joining": workers, "leaving": (), "stall_s": stall_s, "epoch": self.epoch}
        self.tell(
            msgspec.structs.replace(
                CHANGED, step=self.next_step, file="plans/epoch-1.toml", **changed
            )
        )
        self.now_s += stall_s
        return self

    def restore(self, to_step: int) -> "MadeRun":
        redone = self.next_step - to_step
        self.epoch += 1
        self.next_step = to_step
        restored = Restored(
            epoch=self.epoch,
            step=to_step,
            shape="2 replicas x 2 stages",
            num_workers=4,
            steps_redone=redone,
            stall_s=0.5,
            load_s=0.2,
            bytes_by_origin={"memory": 1000},
            file="plans/epoch-1.toml",
        )
        return self.tell(restored, 0.5)

    def fault(self, fault: str, target: str) -> "MadeRun":
        return self.tell(FaultInjected(fault=fault, target=target, step=self.next_step))

    def lose_coordinator(self) -> "MadeRun":
        return self.tell(CoordinatorStarted(term=2, reason="the one before was lost"), 0.05)

    def checkpoint(self) -> "MadeRun":
        path = f"checkpoints/step-{self.next_step}"
        return self.tell(CheckpointWritten(step=self.next_step, path=path, seconds=0.1))

    def end(self, outcome: str = "finished") -> "MadeRun":
        seconds = self.now_s - START_S
        ended = JobEnded(outcome=outcome, next_step=self.next_step, loss=1.0, seconds=seconds)
        return self.tell(ended, 0.1)

    def model(self) -> RunModel:
        model = RunModel()
        for at_s, event in self.events:
            model.add(at_s, event)
        return model

    def write(self, path: Path) -> Path:
        """As a run directory."""
        directory = create_run_directory(str(path), "x")
        directory.write("plans/epoch-1.toml", format_plan(PLAN))
        times = iter([at_s for at_s, _ in self.events])
        stamp = lambda: datetime.fromtimestamp(next(times), UTC).isoformat()  # noqa: E731
        with Journal(path / "journal.jsonl", path / "metrics.jsonl", now=stamp) as journal:
            for _, event in self.events:
                journal.write(event)
        return path


def disturbed_run() -> MadeRun:
    """A worker is killed and comes back, the coordinator is lost, state is lost."""
    run = MadeRun().start().steps(20)
    run.fault("SIGKILL", "n1.g0").lose("n1.g0").steps(3).back("n1.g0").steps(10)
    run.lose_coordinator().steps(10).checkpoint()
    run.tell(WorkerLost(worker="n0.g1", incarnation=1, kind="hung", reason="hangs"), 2.0)
    return run.restore(40).steps(20)
