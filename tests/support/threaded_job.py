"""A whole job in one process: the real coordinator, and every worker a thread with a real trainer.

Groups are real, too. A worker "dies" by raising an exception that nothing catches, at a named point
of a step; its connections then close. So a failure can be put anywhere, exactly.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist

from holdfast.control.coordinator import Coordinator
from holdfast.control.effects import (
    Explain,
    Fail,
    Finish,
    Kill,
    Leave,
    Record,
    Send,
    Start,
    WorkerMessage,
)
from holdfast.control.facts import (
    Fact,
    NodeConnected,
    PlanWanted,
    StopWanted,
    Tick,
    WorkerExited,
    WorkerTold,
)
from holdfast.control.order import Freeze
from holdfast.control.report import Member
from holdfast.control.settings import ControlSettings
from holdfast.control.state import WorkerState
from holdfast.control.worker_reports import ChangeReport, RecoveryReport, StepReport
from holdfast.engine.epoch import TrainerConfig
from holdfast.engine.groups import GroupBroken
from holdfast.engine.interpreter import Hooks
from holdfast.engine.trainer import Trainer
from holdfast.models.model import LlamaModel
from holdfast.models.presets import LlamaOptions
from holdfast.plan.plan import Plan
from support.control_jobs import NO_PLANNER
from support.training import INITIAL_SEED, RUN_SEED, Task, reference_run

DEADLINE_S = 40.0
ANY_STEP = -1


class Died(BaseException):
    """The end of a worker, without a word."""


@dataclass
class Fault:
    """What happens to whom, where. Each happens once."""

    worker: str
    step: int
    phase: str
    kind: str = "die"
    """die, or break: its groups break, and it lives."""
    skip: int = 0
    """How often the point is passed before."""
    incarnation: int = 1
    """0 = any."""
    happened: bool = False


class ThreadLink:
    """(Link) Queues to and from the coordinator's thread."""

    def __init__(self, job: "ThreadedJob", member: Member) -> None:
        self.job, self.member = job, member
        self.newest_freeze = 0
        self.is_open = True
        self._words: queue.Queue[WorkerMessage | None] = queue.Queue()
        self._call: Any = None

    def on_freeze(self, call: Any) -> None:
        self._call = call

    def deliver(self, word: WorkerMessage) -> None:
        if not self.is_open:
            return
        self._words.put(word)
        if isinstance(word, Freeze) and word.round > self.newest_freeze:
            self.newest_freeze = word.round
            if self._call is not None:
                self._call(word)

    def kill(self) -> None:
        """The worker ends when it next looks for a message, whatever it is blocked in now."""
        self.is_open = False
        self._words.put(None)
        if self._call is not None:
            self._call(Freeze(self.newest_freeze, "killed"))

    def wait(self, timeout_s: float) -> WorkerMessage | None:
        try:
            word = self._words.get(timeout=timeout_s) if timeout_s else self._words.get_nowait()
        except queue.Empty:
            return None
        if word is None:
            raise Died
        return word

    def tell(self, state: WorkerState) -> None:
        if self.is_open:
            self.job.states[self.member] = state
            self.job.facts.put(WorkerTold(state))

    def step_done(self, report: StepReport) -> None:
        with self.job.stepped:
            self.job.steps.setdefault(self.member, []).append(report)
            self.job.stepped.notify_all()

    def plan_changed(self, report: ChangeReport) -> None:
        self.job.changes.append((self.member, report))

    def recovered(self, report: RecoveryReport) -> None:
        self.job.recoveries.append((self.member, report))

    def finished(self, next_step: int) -> None:
        pass


@dataclass
class ThreadedJob:
    task: Task
    plan: Plan
    faults: Sequence[Fault] = ()
    restart: bool = True
    crash_at: int = 0
    """The coordinator is lost right after its journal entry of this number, with all it knows and
    all messages under way.
    """
    enough: Callable[["ThreadedJob"], bool] = lambda job: False
    """The job has shown what it is for, and may stop before its last step."""
    wishes: Sequence[tuple[int, Plan]] = ()
    """Plans that are wanted, each once so many steps are done."""
    spares: tuple[str, ...] = ()
    """Workers that live and have no place in `plan`."""
    settings: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    deadline_s: float = DEADLINE_S
    """Of the whole run."""

    def __post_init__(self) -> None:
        self.facts: queue.Queue[Fact] = queue.Queue()
        self.links: dict[Member, ThreadLink] = {}
        self.threads: dict[Member, threading.Thread] = {}
        self.trainers: dict[Member, Trainer] = {}
        self.steps: dict[Member, list[StepReport]] = {}
        self.stepped = threading.Condition()
        self.changes: list[tuple[Member, ChangeReport]] = []
        self.recoveries: list[tuple[Member, RecoveryReport]] = []
        self.decisions: list[str] = []
        self.journal: list[Any] = []
        self.errors: list[BaseException] = []
        self.store = dist.HashStore()
        self.is_over = False
        self.states: dict[Member, WorkerState] = {}
        self.num_crashes = 0
        self._num_wished = 0
        self._last_fault = -1
        """The step in which it happened."""

    def run(self) -> None:
        """All steps."""
        self._start_coordinator()
        deadline = time.monotonic() + self.deadline_s
        while not self.is_over:
            if self.errors:
                raise self.errors[0]
            if time.monotonic() > deadline:
                raise AssertionError("no end: " + "\n".join(self.decisions))
            try:
                fact: Fact = self.facts.get(timeout=0.02)
            except queue.Empty:
                fact = Tick()
            for effect in self.coordinator.take(fact, int(time.monotonic() * 1000)):
                self._do(effect)
                if isinstance(effect, Record) and len(self.journal) == self.crash_at:
                    self.num_crashes += 1
                    self._start_coordinator()
                    break
            self._wish()
            if not self._is_stopping and self.enough(self):
                self._is_stopping = True
                self.facts.put(StopWanted("enough"))
        for thread in self.threads.values():
            thread.join(10)
            assert not thread.is_alive(), f"{thread.name} does not end"
        if self.errors:
            raise self.errors[0]
        self.close()

    def _wish(self) -> None:
        for at_step, plan in self.wishes[self._num_wished : self._num_wished + 1]:
            if self.num_done >= at_step:
                self._num_wished += 1
                self.facts.put(PlanWanted(plan, "a wish"))

    def runs(self, plan: Plan) -> bool:
        """Have all workers of a plan done a step under it, and all faults happened?"""
        alive = {m.name: t for m, t in self.trainers.items() if self.links[m].is_open}
        return all(fault.happened for fault in self.faults) and all(
            name in alive and self._has_stepped_in(alive[name], plan) for name in plan.workers
        )

    def _has_stepped_in(self, trainer: Trainer, plan: Plan) -> bool:
        epoch, position = trainer._parts.epoch, trainer.position
        return (
            epoch is not None and epoch.plan == plan and position.version > position.entered_at + 1
        )

    def _start_coordinator(self) -> None:
        """A new coordinator, which knows the journal and what the agent tells it."""
        settings = ControlSettings(
            plan=self.plan,
            max_restarts=5 if self.restart else 0,
            **{"replan": NO_PLANNER, **self.settings},
        )
        self.coordinator = Coordinator(settings, tuple(self.journal))
        self._is_stopping = False
        with suppress(queue.Empty):
            while True:
                self.facts.get_nowait()
        alive = tuple(s for m, s in self.states.items() if self.links[m].is_open)
        places = (*self.plan.workers, *self.spares)
        told = NodeConnected(node="n0", agent="a", places=places, workers=alive)
        self.facts.put(told)

    def await_step(self) -> None:
        """Until a worker has done one step more than any worker has now."""

        def newest() -> int:
            return max((r.step for found in self.steps.values() for r in found), default=-1)

        with self.stepped:
            now = newest()
            assert self.stepped.wait_for(lambda: newest() > now, DEADLINE_S), "no worker gets on"

    @property
    def num_done(self) -> int:
        """Steps."""
        return 1 + max((steps[-1].step for steps in self.steps.values()), default=-1)

    def are_back(self) -> bool:
        """All faults have happened, and every worker of the plan has done steps since."""
        newest = {member.name: member for member in self.links}
        recent = max(self.num_done - 2, self._last_fault + 2)
        return all(fault.happened for fault in self.faults) and all(
            name in newest and self._did(newest[name], recent) for name in self.plan.workers
        )

    def _did(self, member: Member, step: int) -> bool:
        return any(report.step >= step for report in self.steps.get(member, ()))

    @property
    def final_trainers(self) -> list[Trainer]:
        """Of the workers that finished the last step."""
        return [
            trainer
            for member, trainer in self.trainers.items()
            if self.links[member].is_open and trainer.slices
        ]

    def close(self) -> None:
        for member in [*self.trainers]:
            self.trainers[member].close()

    def _do(self, effect: Any) -> None:
        match effect:
            case Record(entry=entry):
                self.journal.append(entry)
            case Send(member=member, message=message):
                if member in self.links:
                    self.links[member].deliver(message)
            case Kill(member=member):
                if member in self.links:
                    self.links[member].kill()
            case Start(member=member):
                if member not in self.threads:
                    self._start(member)
            case Explain(text=text):
                self.decisions.append(text)
            case Finish():
                self.is_over = True
                for link in self.links.values():
                    link.deliver(Leave())
            case Fail(reason=reason):
                raise AssertionError("\n".join([*self.decisions, reason]))

    def _start(self, member: Member) -> None:
        self.links[member] = ThreadLink(self, member)
        thread = threading.Thread(target=self._work, args=(member,), daemon=True, name=str(member))
        self.threads[member] = thread
        thread.start()

    def _work(self, member: Member) -> None:
        link, task = self.links[member], self.task
        trainer = Trainer(
            member,
            model=LlamaModel(task.shape, LlamaOptions(dropout=task.dropout), seed=INITIAL_SEED),
            data=task.data,
            config=TrainerConfig(
                num_steps=task.num_steps,
                seed=RUN_SEED,
                dtype=task.dtype,
                compute_dtype=task.compute,
                optimizer=task.optimizer,
                timeout_ms=20_000,
                verify=True,
                **self.config,
            ),
            store=self.store,
            link=link,
            hooks=Hooks(phase=lambda name, step: self._pass(member, name, step)),
        )
        self.trainers[member] = trainer
        link.tell(trainer.position.state())
        try:
            trainer.run()
        except Died:
            link.is_open = False
            trainer.communicator.wake("dead")
            trainer.communicator.close_all()
            self.facts.put(WorkerExited(member, "killed"))
        except BaseException as error:
            self.errors.append(error)

    def _pass(self, member: Member, phase: str, step: int) -> None:
        for fault in self.faults:
            at = step if fault.step == ANY_STEP else fault.step
            incarnation = fault.incarnation or member.incarnation
            here = (fault.worker, incarnation, fault.phase, at)
            if fault.happened or here != (member.name, member.incarnation, phase, step):
                continue
            if fault.skip:
                fault.skip -= 1
                continue
            fault.happened = True
            self._last_fault = max(self._last_fault, step)
            if fault.kind == "die":
                raise Died
            raise GroupBroken("a cable was pulled")


def assert_survives(job: ThreadedJob) -> ThreadedJob:
    """Every fault happened, and the run ends equal to one without: losses, parameters, and the bits
    of all holders of a slice.
    """
    job.run()
    assert all(fault.happened for fault in job.faults), job.faults
    record = reference_run(replace(job.task, num_steps=job.num_done))
    losses: dict[int, set[float]] = {}
    for reports in job.steps.values():
        for report in reports:
            losses.setdefault(report.step, set()).add(report.loss)
    assert {step: len(found) for step, found in losses.items()} == dict.fromkeys(
        range(job.num_done), 1
    ), "every step counts once, with one loss for all"
    for step, (loss,) in losses.items():
        assert abs(loss - record.losses[step]) < 1e-9, step
    held: dict[tuple[str, Any], torch.Tensor] = {}
    for trainer in job.final_trainers:
        for name, piece in trainer.slices.items():
            value = piece.parameter.detach()
            index = tuple(slice(low, high) for low, high in piece.box)
            assert torch.allclose(value, record.parameters[name][index], rtol=1e-9, atol=1e-10)
            other = held.setdefault((name, piece.box), value)
            assert torch.equal(other, value), f"holders of {name} differ"
    return job
