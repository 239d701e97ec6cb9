"""A worker without tensors: the executor of the worker machine on symbolic state.

What the worker really holds (`state`, `sums`, `results`) is kept apart from the machine, which only
keeps account of it: if that account is wrong, what is applied is wrong, and a promise is broken.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.control.effects import WorkerMessage
from holdfast.control.order import Order, Share
from holdfast.control.report import LOSS_ADDEND, Addend, Member, Outcome, Slot
from holdfast.control.worker import WorkerMachine
from holdfast.control.worker_commands import (
    Broke,
    BuildGroups,
    Command,
    CompleteStep,
    DropBefore,
    DropChange,
    Enter,
    Entered,
    Exit,
    FinishRun,
    Idle,
    JoinChange,
    LeaveEpoch,
    LoadFailed,
    LoadState,
    MakeState,
    PrepareChange,
    Quiesce,
    Quiesced,
    Refuse,
    RollForward,
    RunFinished,
    RunStep,
    SendState,
    StepEnded,
    SwitchTo,
    WorkerEvent,
)
from holdfast.sim.fuzz.groups import SymbolicGroups
from holdfast.sim.fuzz.joins import Joining
from holdfast.sim.fuzz.layout import Element
from holdfast.sim.fuzz.step import Step

if TYPE_CHECKING:
    from holdfast.sim.fuzz.world import World

LONG = (LoadState, RollForward, Enter, CompleteStep, RunStep, SwitchTo)
"""Commands that take time; all others are carried out at once."""
QUEUED = (*LONG, BuildGroups, MakeState, LeaveEpoch, FinishRun)
"""Commands that wait for those before them."""


class Worker:
    def __init__(self, world: "World", member: Member) -> None:
        self.world = world
        self.member = member
        self.name = member.name
        self.machine = WorkerMachine(member, num_steps=world.settings.num_steps or None)
        self.position = self.machine.position
        self.is_alive = True
        self.is_paused = False
        self.state: dict[Element, int] = {}
        self.state_before: dict[Element, int] | None = None
        self.sums: dict[Addend, list[int]] = {}
        self.results: dict[Slot, int] = {}
        self.losses: list[int] = []
        self.last_results: dict[Element, int] = {}
        self.step: Step | None = None
        self.joining = Joining(self)
        self.groups = SymbolicGroups(member)
        self.building = 0
        """The order whose groups are being built."""
        self._is_built = False
        self._made: dict[Element, int] = {}
        """State made or loaded for the order that is being carried out."""
        self._arrives_ms = 0
        """When the last state that was sent arrives."""
        self._queue: deque[Command] = deque()
        self._task: Command | None = None
        self._deferred: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def __repr__(self) -> str:
        return str(self.member)

    @property
    def is_stopped(self) -> bool:
        return self.position.is_stopped

    # Time

    def later(self, delay_ms: int, action: Callable[..., None], *arguments: Any) -> None:
        self.world.clock.after(delay_ms, self._run, action, arguments)

    def _run(self, action: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if not self.is_alive:
            return
        if self.is_paused:
            self._deferred.append((action, arguments))
            return
        action(*arguments)

    def resume(self) -> None:
        self.is_paused = False
        waiting, self._deferred = self._deferred, []
        for action, arguments in waiting:
            self.later(0, action, *arguments)

    def tell(self) -> None:
        self._send(SendState(self.position.state()))

    def _send(self, command: SendState) -> None:
        """What is sent first arrives first."""
        now_ms = self.world.clock.now_ms
        self._arrives_ms = max(self._arrives_ms, now_ms + self.world.rng.randint(0, 2))
        agent = self.world.agent_of(self.name)
        self.later(self._arrives_ms - now_ms, agent.receive_state, command.state)

    def note(self, text: str) -> None:
        self.world.clock.note(f"{self.member} {text}")

    # Events in, commands out

    def receive(self, message: WorkerMessage) -> None:
        self._take(message)

    def lost(self, epoch: int, name: str, why: str) -> None:
        """A group of `epoch` broke."""
        position = self.position
        is_in = position.epoch == epoch and position.has_seat and not position.is_stopped
        if is_in or self.building == epoch:
            self.note(f"broken in {epoch}: {why} {name}")
            self._take(Broke(why, (name,) if name else ()))

    def _take(self, event: WorkerEvent) -> None:
        self._put(self.machine.take(event))
        self._work()

    def _put(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, QUEUED):
                self._queue.append(command)
            elif self.is_alive:
                self._do_at_once(command)
        if any(isinstance(command, Quiesce) for command in commands):
            before = self.position.round
            self._put(self.machine.take(Quiesced(self.groups.stop())))
            if self.position.round != before:
                self.note(f"frozen {self.position.round} at {self.position.version}")
                self.world.happened("reported", self)

    def _work(self) -> None:
        while self.is_alive:
            while self._task is None and self._queue:
                self._begin(self._queue.popleft())
            if self._task is not None:
                return
            commands = self.machine.take(Idle())
            if not commands:
                return
            self._put(commands)

    def _ended(self, task: Command, event: WorkerEvent | None = None) -> None:
        """A command that takes time is carried out, unless it was broken off before."""
        if self._task is task:
            self._task = None
            if event is not None:
                self._put(self.machine.take(event))
            self._work()

    # Commands that are carried out at once

    def _do_at_once(self, command: Command) -> None:
        match command:
            case Quiesce():
                self._quiesce()
            case SendState():
                self._send(command)
            case Refuse(order=order, reason=reason):
                self.note(f"{order.kind} {order.number} is refused: {reason}")
            case PrepareChange(order=order) | JoinChange(order=order):
                self.note(f"prepares {order.number}")
                self.joining.begin(order)
            case DropChange(number=number, reason=reason):
                self.note(f"drops {number}: {reason}")
                self.joining.close()
            case DropBefore():
                self.state_before = None
            case Exit(reason=reason):
                if reason:
                    self.world.kill(self, reason)

    def _quiesce(self) -> None:
        self._queue.clear()
        if self.step is not None and self.world.rng.random() < 0.2:
            self._tear()
        epochs = dict.fromkeys((self.position.epoch, self.building))
        self._task, self.step, self.building = None, None, 0
        for epoch in epochs:
            if epoch:
                self.world.wake_others(self, epoch)

    def _tear(self) -> None:
        """It was in the middle of an accumulation."""
        addends = [addend for addend in self.sums if addend != LOSS_ADDEND]
        if addends:
            torn = self.world.rng.choice(addends)
            del self.sums[torn]
            self.position.record.torn([torn])

    # Commands that wait for those before them

    def _begin(self, command: Command) -> None:
        rng, pace = self.world.rng, self.world.pace
        self._task = command if isinstance(command, LONG) else None
        match command:
            case BuildGroups(order=order):
                self._build(order)
            case MakeState(order=order):
                self._made = dict.fromkeys(self.world.layout(order.number).held[self.name], 0)
            case LoadState():
                self.later(rng.randint(0, 8), self._load, command)
            case RollForward():
                self.later(rng.randint(0, pace.apply_ms), self._roll_forward, command)
            case Enter():
                self.later(rng.randint(0, 8), self._enter, command)
            case LeaveEpoch(order=order):
                self._forget()
                self._enter_with(order, Entered(order.number))
            case CompleteStep(share=share, stop=stop):
                self._start(Step(self, share, stop=stop))
            case RunStep(stop=stop):
                self.clear_step()
                self._start(Step(self, None, stop=stop))
            case FinishRun():
                self._put(self.machine.take(RunFinished()))
            case SwitchTo(order=order):
                self.joining.switch(self.position.version)
                self.world.stage(self, order.number)
                self.world.happened("switched", self)
                self._await_moves(command)

    def _build(self, order: Order) -> None:
        self.building, self._is_built = order.number, False
        members = self.world.layout(order.number).plan.workers
        operation = self.world.collective(("groups", order.number), members)
        operation.enter(self, None, lambda _: order.number, self._built)
        self.world.check_links(self, operation, order.number)

    def _built(self, number: int) -> None:
        if self.building == number:
            self._is_built = True
            if isinstance(self._task, Enter):
                self._enter(self._task)

    def _load(self, command: LoadState) -> None:
        if self._task is command:
            loaded = self.world.load(self, command.order)
            self._made = loaded or {}
            reason = "a part of the snapshot is gone"
            self._ended(command, LoadFailed(reason) if loaded is None else None)

    def _roll_forward(self, command: RollForward) -> None:
        if self._task is command:
            self.world.count("roll forwards")
            self._apply(command.outcome)
            self.clear_step()
            self._ended(command)

    def _apply(self, outcome: Outcome) -> None:
        self.world.apply(self, self.position.base, outcome)
        self.position.applied(outcome)

    def _enter(self, command: Enter) -> None:
        if self._task is not command or not self._is_built:
            return
        order = command.order
        if order.share is not None:
            self._keep(order.share)
        else:
            self._forget()
            self.state = self._made
        self._task, self.building = None, 0
        self._enter_with(order, Entered(order.number))
        self._work()

    def _keep(self, share: Share) -> None:
        if share.revert:
            self._revert()
        if share.revert or self.position.base != share.base:
            self.clear_step()
        self.sums = {addend: self.sums[addend] for addend in self.sums if addend[:2] in share.keep}
        self.losses = list(share.losses)

    def _revert(self) -> None:
        self.world.count("reverts")
        self.world.require(
            "P3", self.state_before is not None, f"{self} has no state from before the change"
        )
        assert self.state_before is not None
        self.state, self.state_before = self.state_before, None

    def _forget(self) -> None:
        self.state, self.state_before = {}, None
        self.clear_step()

    def clear_step(self) -> None:
        self.sums, self.results, self.losses = {}, {}, []

    def _enter_with(self, order: Order, entered: Entered) -> None:
        commands = self.machine.take(entered)
        layout = self.world.layout(order.number)
        self.groups.enter(order, layout.groups_of.get(self.name, ()))
        self.note(f"entered {order.kind} {order.number} at {self.position.version}")
        self.joining.close(switched=order.kind == "change")
        self.world.entered(self, order)
        self._put(commands)

    # Steps

    def _start(self, step: Step) -> None:
        self.step = step
        step.begin()

    def step_ended(self, step: Step) -> None:
        """Applied; what has died meanwhile does nothing more."""
        if self.is_alive and self.step is step and self._task is not None:
            self.step = None
            self.groups.step_done()
            self._ended(self._task, StepEnded())

    # Planned changes

    def _await_moves(self, command: SwitchTo) -> None:
        if self._task is not command:
            return
        new_state = self.world.moved_state(self, command.order.number)
        if new_state is None:
            self.later(self.world.rng.randint(1, 5), self._await_moves, command)
            return
        self.state_before, self.state = self.state, new_state
        self._task = None
        self._enter_with(command.order, Entered(command.order.number))
        self._work()

    def join(self, order: Order, version: int) -> None:
        """A joiner whose sources have all switched."""
        if self.machine.order is order:
            self.state = dict(self.joining.state)
            self._enter_with(order, Entered(order.number, version, self.joining.outcome))
            self._work()
