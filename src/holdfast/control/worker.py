"""The worker machine: messages and completions in, commands out. It decides what a worker does next
and in which order; an executor carries that out, be it with tensors or symbolically.

    start     build groups, make the initial state, enter
    restore   build groups, load a snapshot, enter
    recover   build groups; meanwhile apply what others have applied already; enter, and complete
              the step in flight
    change    with a seat: prepare it beside the training, vote for it in the agreement of a step,
              switch when all have voted for it. Without one: build groups, be fed, enter with the
              others
    left out  give up groups and state, and wait

Whatever breaks ends in one place: quiesce, say so, and wait. A freeze quiesces, too, and is
answered by a report only then. From a freeze or a break on, no order that was accepted before is
carried out any further, and nothing is done in an older epoch: a report is a promise.

In a step the machine is asked three times (`vote`, `agreed`, `WorkerPosition.applied`), never per
action; what is computed and reduced goes into the record of the step.
"""

from holdfast.control.effects import Leave, Stop, Void
from holdfast.control.order import Freeze, Order
from holdfast.control.report import GroupLevel, Member
from holdfast.control.worker_commands import (
    Broke,
    BuildGroups,
    ChangeFailed,
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
from holdfast.control.worker_position import WorkerPosition, share_of
from holdfast.errors import invariant

PATIENCE_MS = 5000
"""How long a change that cannot be prepared may stay. Where a joiner has died, the coordinator
calls the change off first; only what nothing else notices is worth a recovery."""


class WorkerMachine:
    def __init__(self, member: Member, *, num_steps: int | None = None) -> None:
        """`num_steps`: the last step ends the run; None: only a stop does."""
        self.position = WorkerPosition(member)
        self.stop_wanted = False
        self.has_left = False
        self._num_steps = num_steps
        self._order: Order | None = None
        self._change: Order | None = None
        self._freeze: Freeze | None = None
        self._switch = 0
        self._stop_agreed = False
        self._keeps_before = False
        self._failing_since_ms = -1

    @property
    def order(self) -> Order | None:
        """Accepted, and being carried out."""
        return self._order

    @property
    def change(self) -> Order | None:
        """The planned change that is being prepared or joined."""
        return self._change

    def take(self, event: WorkerEvent) -> list[Command]:
        match event:
            case Idle():
                return self._go_on()
            case StepEnded():
                return self._step_ended()
            case RunFinished():
                self.position.done()
                return [self._state()]
            case Freeze():
                return self._freeze_received(event)
            case Quiesced(groups=groups):
                return self._quiesced(groups)
            case Order():
                return self._order_received(event)
            case Entered():
                return self._entered(event)
            case Void():
                return self._void_received(event)
            case Stop():
                self.stop_wanted = True
                return []
            case Leave():
                self.has_left = True
                return [Exit()]
            case Broke(reason=reason, blamed=blamed):
                return self._broke(reason, blamed)
            case ChangeFailed():
                return self._change_failed(event)
            case LoadFailed(reason=reason):
                return [Exit(reason)]

    def _state(self) -> SendState:
        return SendState(self.position.state())

    # Steps

    def _go_on(self) -> list[Command]:
        position = self.position
        is_busy = self._order is not None or self._freeze is not None or self.has_left
        if is_busy or not position.has_seat or position.is_stopped:
            return []
        if self._stop_agreed or not self._has_step(position.version):
            return [FinishRun(position.version)]
        position.begin_step()
        return [RunStep(position.version, self.stop_wanted)]

    def _has_step(self, step: int) -> bool:
        return self._num_steps is None or step < self._num_steps

    def vote(self, is_prepared: bool) -> int:
        """The change to vote for in the agreement of this step, 0: none. `is_prepared`: groups are
        built, and those who are fed are current. A change without joiners for a certain step is
        waited for at the switch; any other is entered when everything is there. None is entered
        behind the last step: the job would end in an epoch in which nothing was done, and whose
        joiners nothing waits for.
        """
        change, ready, next_step = self._change, False, self.position.version + 1
        if change is not None and next_step >= change.at_step and self._has_step(next_step):
            ready = is_prepared or bool(change.at_step and not change.joiners)
        return self.position.vote(ready)

    def agreed(self, switch: int, stop: bool) -> None:
        """What all have agreed on in a step: to switch to a change, or to stop, which wins."""
        self._switch = 0 if stop else switch
        self._stop_agreed = stop
        self.stop_wanted = self.stop_wanted or stop
        self.position.agreed(self._switch)

    def _step_ended(self) -> list[Command]:
        commands: list[Command] = []
        if self._keeps_before:
            self._keeps_before = False
            commands.append(DropBefore())
        if self._change is not None and not self.position.pending:
            commands += [*self._drop_change("it is void"), self._state()]
        if self._switch:
            change, self._switch = self._change, 0
            invariant(change is not None, f"{self.position.member} has voted for no change")
            assert change is not None
            self._order = change
            commands.append(SwitchTo(change))
        return commands

    # Failures

    def _freeze_received(self, freeze: Freeze) -> list[Command]:
        known = self._freeze.round if self._freeze is not None else 0
        if freeze.round <= known or not self.position.is_due(freeze.round):
            return []
        self._freeze = freeze
        reason = freeze.reason or f"round {freeze.round}"
        return self._abandon(Quiesce(reason, leaving=freeze.leaving))

    def _quiesced(self, groups: dict[str, GroupLevel]) -> list[Command]:
        freeze, self._freeze = self._freeze, None
        if freeze is None:
            return []
        self.position.on_freeze(freeze, groups)
        return [self._state()]

    def _abandon(self, how: Quiesce) -> list[Command]:
        """Whatever is under way ends here."""
        self._order, self._switch, self._stop_agreed = None, 0, False
        return [how, *self._drop_change(how.reason)]

    def _broke(self, reason: str, blamed: tuple[str, ...]) -> list[Command]:
        """Also of a worker that is frozen: then the order that ends its round cannot be entered."""
        position = self.position
        is_idle = self._order is None and (position.is_stopped or not position.has_seat)
        if is_idle or self._freeze is not None:
            return []
        commands = self._abandon(Quiesce(reason, is_frozen=False))
        position.on_broken(reason, blamed)
        return [*commands, self._state()]

    # Orders

    def _order_received(self, order: Order) -> list[Command]:
        reason = self._why_not(order)
        if reason:
            return [Refuse(order, reason)]
        if order.kind == "change" and self.position.has_seat:
            self.position.prepare(order)
            commands = self._drop_change(f"change {order.number} takes its place")
            self._change = order
            return [*commands, PrepareChange(order), self._state()]
        is_idle = self._order is None and (self.position.is_stopped or not self.position.has_seat)
        reason = f"order {order.number}"
        commands = self._drop_change(reason) if is_idle else self._abandon(Quiesce(reason))
        self._order = order
        return [*commands, *self._carry_out(order)]

    def _why_not(self, order: Order) -> str:
        if self._freeze is not None:
            return f"round {self._freeze.round} has begun"
        is_accepted, reason = self.position.accepts(order)
        if not is_accepted:
            return reason
        under_way = self._order.number if self._order is not None else 0
        if order.number <= under_way:
            return f"order {under_way} is being carried out"
        if order.kind == "change" and self.position.has_seat:
            if under_way:
                return f"order {under_way} is being carried out"
            return f"this worker is broken: {self.position.broken}" if self.position.broken else ""
        return ""

    def _carry_out(self, order: Order) -> list[Command]:
        if not self.position.is_in(order):
            return [LeaveEpoch(order)]
        match order.kind:
            case "start":
                return [BuildGroups(order), MakeState(order), Enter(order)]
            case "restore":
                return [BuildGroups(order), LoadState(order), Enter(order)]
            case "recover":
                enter = Enter(order, self._has_step(share_of(order).step))
                return [BuildGroups(order), *self._roll_forward(order), enter]
            case "change":
                self.position.prepare(order)
                self._change = order
                return [self._state(), JoinChange(order)]

    def _roll_forward(self, order: Order) -> list[Command]:
        """Of a worker that is a step behind."""
        share = share_of(order)
        if self.position.version >= share.step:
            return []
        behind = f"{self.position.member} is at {self.position.version}, order {order.number} goes"
        invariant(
            share.outcome is not None
            and self.position.version == share.step - 1
            and not share.revert,
            f"{behind} on at {share.step}, without an outcome for it",
        )
        assert share.outcome is not None
        return [RollForward(share.outcome)]

    def _entered(self, event: Entered) -> list[Command]:
        order, self._order = self._order, None
        invariant(
            order is not None and order.number == event.number,
            f"{self.position.member} was not about to enter {event.number}",
        )
        assert order is not None
        commands: list[Command] = [DropBefore()] if self._keeps_before else []
        self._change, self._stop_agreed = None, False
        self.position.enter(order, version=event.version, outcome=event.outcome)
        self._keeps_before = self.position.before > 0
        if order.kind == "change" and not self._keeps_before:
            commands.append(DropBefore())
        return [*commands, self._state(), *self._first_step(order)]

    def _first_step(self, order: Order) -> list[Command]:
        """After a recovery: the rest of the step in flight, unless the last one is done."""
        position = self.position
        if order.kind != "recover" or not position.has_seat:
            return []
        if not self._has_step(position.version):
            return []
        return [CompleteStep(share_of(order), position.record.results, self.stop_wanted)]

    # Planned changes

    def _void_received(self, void: Void) -> list[Command]:
        self.position.on_void(void.number)
        commands: list[Command] = []
        if self._change is not None and not self.position.pending:
            commands = self._drop_change(f"change {void.number} is void")
        return [*commands, self._state()]

    def _drop_change(self, reason: str) -> list[Command]:
        change, self._change = self._change, None
        if change is None:
            return []
        if self._order is change:
            self._order = None
        self._failing_since_ms = -1
        return [DropChange(change.number, reason)]

    def _change_failed(self, failed: ChangeFailed) -> list[Command]:
        if self._change is None or self._change.number != failed.number:
            return []
        if self._failing_since_ms < 0:
            self._failing_since_ms = failed.now_ms
        if failed.now_ms - self._failing_since_ms <= PATIENCE_MS:
            return []
        return self._broke(failed.reason, ())
