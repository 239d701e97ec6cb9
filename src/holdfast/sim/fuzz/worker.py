"""A worker without tensors: the protocol as the engine drives it, on symbolic state.

What the worker remembers for real (`state`, `sums`, `results`) is kept apart from the ledger, which
only keeps the books: if the books are wrong, what is applied is wrong, and a promise is broken.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.control.effects import Stop, Void
from holdfast.control.order import Freeze, Order, Share
from holdfast.control.report import LOSS_ADDEND, Addend, Member, Slot
from holdfast.control.worker_ledger import WorkerLedger
from holdfast.sim.fuzz.joins import Joining
from holdfast.sim.fuzz.layout import Element
from holdfast.sim.fuzz.step import Step

if TYPE_CHECKING:
    from holdfast.sim.fuzz.world import World


class Worker:
    def __init__(self, world: "World", member: Member) -> None:
        self.world = world
        self.member = member
        self.name = member.name
        self.ledger = WorkerLedger(member, world.rules)
        self.is_alive = True
        self.is_paused = False
        self.stop_wanted = False
        self.order: Order | None = None
        self.pending_order: Order | None = None
        self.state: dict[Element, int] = {}
        self.state_before: dict[Element, int] | None = None
        self.sums: dict[Addend, list[int]] = {}
        self.results: dict[Slot, int] = {}
        self.losses: list[int] = []
        self.last_results: dict[Element, int] = {}
        self.step: Step | None = None
        self.joining = Joining(self)
        self._deferred: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._told_ms = 0

    def __repr__(self) -> str:
        return str(self.member)

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

    @property
    def is_stopped(self) -> bool:
        """Nothing is done in this epoch any more."""
        return self.ledger.is_frozen or bool(self.ledger.broken) or self.ledger.is_done

    def tell(self) -> None:
        """Its agent gets its states in their order."""
        agent, now_ms = self.world.agent_of(self.name), self.world.clock.now_ms
        self._told_ms = max(self._told_ms, now_ms + self.world.rng.randint(0, 2))
        self.later(self._told_ms - now_ms, agent.heard, self.ledger.state())

    def note(self, text: str) -> None:
        self.world.clock.note(f"{self.member} {text}")

    # Messages

    def receive(self, message: Freeze | Order | Void | Stop) -> None:
        match message:
            case Freeze():
                self._freeze(message)
            case Order():
                self._ordered(message)
            case Void(number=number):
                self.ledger.on_void(number)
                self.note(f"void {number} pending {self.ledger.pending}")
                if not self.ledger.pending and self.order != self.pending_order:
                    self._give_up_change()
                self.tell()
            case Stop():
                self.stop_wanted = True

    def _give_up_change(self, *, switched: bool = False) -> None:
        self.pending_order = None
        self.joining.close(switched=switched)

    def _freeze(self, freeze: Freeze) -> None:
        if (
            freeze.round > max(self.ledger.round, self.ledger.epoch)
            and self.world.rng.random() < 0.2
        ):
            self._tear()
        epoch = self.ledger.epoch
        report = self.ledger.on_freeze(freeze)
        if report is None:
            return
        self.note(f"frozen {freeze.round} at {self.ledger.version} in {epoch}")
        if self.ledger.is_frozen:
            self.world.wake_others(self, epoch)
        self.tell()
        self.world.happened("reported", self)

    def _tear(self) -> None:
        """The freeze came in the middle of an accumulation."""
        addends = [addend for addend in self.sums if addend != LOSS_ADDEND]
        if addends and not self.is_stopped:
            torn = self.world.rng.choice(addends)
            del self.sums[torn]
            self.ledger.torn([torn])

    def lost(self, epoch: int, name: str, why: str) -> None:
        """A group of `epoch` broke."""
        if self.ledger.epoch != epoch or self.is_stopped or not self.ledger.has_seat:
            return
        self.ledger.on_broken(why, (name,) if name else ())
        self.note(f"broken in {epoch}: {why} {name}")
        self.world.wake_others(self, epoch)
        self.tell()

    # Orders

    def _ordered(self, order: Order) -> None:
        accepted, reason = self.ledger.accepts(order)
        self.note(f"{order.kind} {order.number} {reason}")
        if not accepted:
            return
        if order.kind == "change":
            self._prepare(order)
        else:
            self.later(self.world.rng.randint(0, 8), self._obey, order)

    def _obey(self, order: Order) -> None:
        if not self.ledger.accepts(order)[0]:
            return
        self.step = None
        if not self.ledger.is_in(order):
            self._forget()
        elif order.kind == "start":
            self._forget()
            layout = self.world.layout(order.number)
            self.state = dict.fromkeys(layout.held[self.name], 0)
        elif order.kind == "restore":
            self._forget()
            loaded = self.world.load(self, order)
            if loaded is None:
                self.ledger.on_broken("a part of the snapshot is gone")
                self.tell()
                return
            self.state = loaded
        else:
            assert order.share is not None
            self._recover(order, order.share)
        self._entered(order)

    def _forget(self) -> None:
        self.state, self.state_before = {}, None
        self.clear_step()

    def clear_step(self) -> None:
        self.sums, self.results, self.losses = {}, {}, []

    def _recover(self, order: Order, share: Share) -> None:
        if share.revert:
            self._revert()
        if self.ledger.version < share.step and share.outcome is not None:
            self.world.count("roll forwards")
            self.world.apply(self, self.ledger.base, share.outcome)
        if share.revert or self.ledger.version < share.step or self.ledger.base != share.base:
            self.clear_step()
        self.sums = {addend: self.sums[addend] for addend in self.sums if addend[:2] in share.keep}
        self.losses = list(share.speak)

    def _revert(self) -> None:
        self.world.count("reverts")
        self.world.require(
            "P3", self.state_before is not None, f"{self} has no state from before the change"
        )
        assert self.state_before is not None
        self.state, self.state_before = self.state_before, None

    def _entered(self, order: Order, version: int | None = None) -> None:
        outcome = self.joining.outcome if version is not None else None
        self.ledger.enter(order, version=version, outcome=outcome)
        self.order = order
        self._give_up_change(switched=order.kind == "change")
        self.note(f"entered {order.kind} {order.number} at {self.ledger.version}")
        self.tell()
        self.world.entered(self, order)
        if self.ledger.has_seat:
            self.begin(order.share)

    def begin(self, share: Share | None = None) -> None:
        """The next step, or the completion of the one in flight."""
        assert self.order is not None
        if share is None:
            self.clear_step()
            self.ledger.begin_step(self.ledger.version, self.ledger.epoch)
        self.step = Step(self, share)
        self.step.begin()

    # Planned changes

    def _prepare(self, order: Order) -> None:
        self.ledger.prepare(order)
        self._give_up_change()
        self.pending_order = order
        self.joining.begin(order)
        self.tell()

    def switch(self, number: int) -> None:
        """The agreement said so: to the next plan, with whatever has to move there."""
        order = self.pending_order
        is_known = order is not None and order.number == number
        self.world.require("P2", is_known, f"{self} has given up change {number} and voted for it")
        assert order is not None
        self.world.stage(self, number)
        self.world.happened("switched", self)
        self._await_moves(order, self.ledger.epoch)

    def _await_moves(self, order: Order, epoch: int) -> None:
        if self.ledger.epoch != epoch or self.is_stopped:
            return
        new_state = self.world.moved_state(self, order.number)
        if new_state is None:
            self.later(self.world.rng.randint(1, 5), self._await_moves, order, epoch)
            return
        keeps = self.world.rules.keep_before
        self.state_before = self.state if keeps else None
        self.state = new_state
        self._entered(order)

    def join(self, order: Order, version: int) -> None:
        """A joiner whose sources have all switched."""
        self.state = dict(self.joining.state)
        self._entered(order, version)
