"""The interpreter: runs a worker's action list, step after step.

The list says what is computed, in which order, and in which order messages and reductions start;
the interpreter adds nothing but overlap. Receives are posted ahead, sends leave on their own,
and a bucket's reduction starts as soon as the last backward pass through its unit has ended, no
later than where the list has it.

Whatever is done is noted in the record of the step at once: which micro-batches are in which sum,
which slots are reduced. So when a step breaks off, at any point, it is known exactly what there is.
The machine is asked only at the end, for the vote, and told the outcome. A broken step is completed
by the same interpreter on a shorter list (`Completion`).
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from holdfast.control.report import LOSS_ADDEND, Addend, Outcome
from holdfast.control.worker import WorkerMachine
from holdfast.engine.agreement import Agreed, AgreementTree, Ballot, agree
from holdfast.engine.boundary import Boundary
from holdfast.engine.completion import Completion, Losses, Slots
from holdfast.engine.compute import Computation
from holdfast.engine.data import DataSource, MicroBatch
from holdfast.engine.evaluation import Evaluation
from holdfast.engine.exchange import BoundaryMessage, Messages
from holdfast.engine.measure import Stopwatch
from holdfast.engine.optimizer import SliceOptimizer
from holdfast.engine.reduction import Reduction
from holdfast.engine.sharding import Gathers
from holdfast.engine.state import TensorState
from holdfast.engine.transport.device_log import DeviceLog
from holdfast.errors import InternalError
from holdfast.plan.actions import Action
from holdfast.plan.holders import HolderMap
from holdfast.plan.plan import Hop, Plan
from holdfast.snapshot.copying.gaps import Gaps, NoGaps
from holdfast.snapshot.placement import AGREE


def _pass(*args: object) -> None:
    """Nothing wants to know."""


def _never(step: int) -> bool:
    return False


@dataclass(slots=True)
class Hooks:
    """What has to know where a worker is, the same over all its epochs."""

    progress: Callable[[int, int], object] = _pass
    """Step and number of the action that begins."""
    between: Callable[[int, int], object] = _pass
    """Progress in what is done behind the last action of a step: that step, and a number that
    rises.
    """
    phase: Callable[[str, int], object] = _pass
    """Name of a point within the step, and the step; may end it, for experiments with faults."""
    is_prepared: Callable[[int], bool] = _never
    """Everything is reduced: is the pending change prepared, so that this step may end with it?"""
    after_apply: Callable[[Outcome], object] = _pass
    """A step has been agreed, and its gradients are still as they were reduced."""
    reduced: Callable[[int, float], object] = _pass
    """A unit whose exchange has ended, and when it was started (`time.perf_counter`)."""
    gaps: Gaps = field(default_factory=NoGaps)
    """What copies state while this thread waits."""
    state_lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while state changes: a holder of it may read a whole version."""


@dataclass(slots=True)
class StepContext:
    """What a worker's steps need under any plan."""

    machine: WorkerMachine
    data: DataSource
    stopwatch: Stopwatch
    clip_norm: float | None
    hooks: Hooks = field(default_factory=Hooks)


@dataclass(slots=True)
class EpochParts:
    """What one worker's steps need under one plan."""

    epoch: int
    plan: Plan
    actions: Sequence[Action]
    state: TensorState
    slots: Slots
    computation: Computation
    messages: Messages
    reduction: Reduction
    optimizer: SliceOptimizer
    all_workers: AgreementTree | None
    device_log: DeviceLog = field(default_factory=DeviceLog)
    completion: Completion | None = None
    """Of a broken step, whose rest these parts are for."""
    gathers: Gathers | None = None
    """Of a worker with a shard axis."""
    evaluation: Evaluation | None = None
    """Where the job has a validation set."""


class Interpreter:
    """Runs the steps of one worker under one plan."""

    def __init__(self, parts: EpochParts, context: StepContext) -> None:
        plan, state = parts.plan, parts.state
        self._plan, self._actions, self._state = plan, list(parts.actions), state
        self._slots, self._epoch, self._completion = parts.slots, parts.epoch, parts.completion
        self._computation, self._messages = parts.computation, parts.messages
        self._reduction, self._optimizer = parts.reduction, parts.optimizer
        self._all_workers = parts.all_workers
        self._machine, self._record = context.machine, context.machine.position.record
        self._data, self._stopwatch = context.data, context.stopwatch
        self._clip_norm, self._hooks = context.clip_norm, context.hooks
        self._device_log = parts.device_log
        self._gathers, self._evaluation = parts.gathers, parts.evaluation
        self._evaluated = (0.0, 0)
        self.evaluated_s = 0.0
        """What the evaluation before the step took, if there was one."""
        self._noted: list[tuple[int, tuple[Addend, ...]]] = []
        """What was noted of this step, and the length of the device's log then."""
        self._reduction.on_launch = self._launched
        self._reduction.on_land = context.hooks.reduced
        self._hops = {
            (hop.stage, number): hop for number, route in enumerate(plan.routes) for hop in route
        }
        self._next = _neighbours(plan)
        self._loss_stages = loss_stages(plan, state.worker)
        self._last = self._find_last()
        self._buckets_of = {unit: _buckets_of(plan, unit) for unit in self._last}
        """Per unit that gets gradients here, the buckets they go into."""
        added = [bucket for buckets in self._buckets_of.values() for bucket in buckets]
        self._num_adders = Counter(added)
        self._batches: dict[int, MicroBatch] = {}
        self._num_tokens: dict[int, int] = {}
        self._made: dict[BoundaryMessage, Boundary] = {}
        """Results that wait for their turn to be sent."""
        self.losses: Losses = {}
        """Of the step in flight, those that this worker reports."""
        self._agreed: Agreed | None = None
        self._stop = False
        self._micro_batch, self._action, self._step = -1, -1, -1
        self._adding = -1
        """The unit whose backward pass is under way."""

    def _find_last(self) -> dict[int, int]:
        """Per unit, the number of the action that adds to its gradients last."""
        last: dict[int, int] = {}
        for number, action in enumerate(self._actions):
            if action.kind in ("B", "W"):
                hop = self._hops[action.stage, action.number]
                last.update(dict.fromkeys(range(hop.first, hop.stop), number))
        return last

    def run_step(self, step: int, *, stop: bool = False) -> Agreed:
        """One step, from zeroed gradients to the applied update; or the rest of a broken one."""
        self._stop, self._agreed, self._step = stop, None, step
        self._open = dict(self._num_adders)
        if self._completion is None:
            self._state.clear_gradients()
            self.losses = {}
        else:
            self._completion.clear()
            self.losses = dict(self._completion.losses)
        self._num_launched = 0
        self._noted.clear()
        self._device_log.num_ended()
        if self._gathers is not None:
            self._gathers.begin()
        self._evaluate(step)
        self._messages.begin(self._data, step)
        progress = self._hooks.progress
        for number, action in enumerate(self._actions):
            progress(step, number)
            self._perform(action, number, step)
        if self._agreed is None:
            raise InternalError("the action list has no AGREE")
        return self._agreed

    def _evaluate(self, step: int) -> None:
        self._evaluated, self.evaluated_s = (0.0, 0), 0.0
        evaluation = self._evaluation
        if evaluation is None or not evaluation.evaluated.is_due(step):
            return
        start, first = time.perf_counter(), len(self._actions)
        self._hooks.phase("evaluate", step)
        self._evaluated = evaluation.run(lambda at: self._hooks.between(step - 1, first + at))
        self.evaluated_s = time.perf_counter() - start

    def evaluate_last(self, step: int) -> tuple[float, int] | None:
        """Behind the last step, by all workers: the mean loss of the validation set, and of how
        many targets; None: the job has none.
        """
        if self._evaluation is None:
            return None
        self._hooks.phase("evaluate", step)
        first = len(self._actions)
        told = self._evaluation.run(lambda at: self._hooks.between(step - 1, first + at))
        sums = torch.tensor(told, dtype=torch.float64)
        if self._all_workers is not None:
            self._all_workers.add_up(sums)
        loss_sum, num_tokens = sums.tolist()
        return (loss_sum / num_tokens, int(num_tokens)) if num_tokens else None

    @property
    def actions(self) -> Sequence[Action]:
        """What it does in a step, in this order."""
        return self._actions

    @property
    def is_completing(self) -> bool:
        """The rest of a broken step."""
        return self._completion is not None

    def break_off(self) -> None:
        """A step was interrupted: note what it left half done."""
        self._hooks.gaps.broken_off()
        if self._adding >= 0:
            slots = {addend[:2] for addend in self._slots.addends[self._adding]}
            addends = {addend for found in self._slots.addends.values() for addend in found}
            self._record.torn(sorted(addend for addend in addends if addend[:2] in slots))
            self._adding = -1
        self._take_back()

    def _take_back(self) -> None:
        """What the device did behind an operation that was broken off counts for nothing."""
        ended = self._device_log.num_ended()
        noted = [addends for length, addends in self._noted if length > ended]
        self._record.torn(sorted({addend for addends in noted for addend in addends}))
        self._noted.clear()

    def roll_forward(self, outcome: Outcome) -> None:
        """Finish a step that others have applied, with the gradients that are reduced here."""
        self._finish_step(outcome)

    def _perform(self, action: Action, number: int, step: int) -> None:
        kind = action.kind
        if kind in ("F", "B", "I", "W"):
            self._compute(action, number, step)
        elif kind == "R":
            self._computation.recompute(action.stage, action.number)
        elif kind in ("RF", "RB"):
            self._messages.reached(action)
        elif kind == "REDUCE":
            self._reduction.mark_ready(action.number)
        elif kind == "UNSHARD" and self._gathers is not None:
            self._gathers.ask(action.number)
        elif kind == "RESHARD" and self._gathers is not None:
            self._gathers.release(action.number)
        elif kind == "AGREE":
            self._agree()
        elif kind == "STEP":
            self._apply()
        elif kind in ("SF", "SB"):
            # Not before its turn: messages carry no tags, so the list's order is the peer's.
            made = self._made.pop((kind[1], action.stage, action.number))
            self._hooks.phase("message", step)
            self._messages.put(kind[1], action.stage, action.peer, action.number, made)
        else:
            raise InternalError(f"the interpreter does not know the action {kind}")

    def _compute(self, action: Action, number: int, step: int) -> None:
        """Forward or backward, and what it costs besides its units and its waiting."""
        stopwatch = self._stopwatch
        start, known = time.perf_counter(), self._accounted()
        if action.kind == "F":
            self._forward(action, step)
        else:
            self._backward(action, number)
        seconds = time.perf_counter() - start
        stopwatch.add("action", seconds - (self._accounted() - known))

    def _accounted(self) -> float:
        """Seconds since the start that are counted elsewhere."""
        gathered = self._gathers.waited if self._gathers is not None else 0.0
        return self._messages.waited + self._stopwatch.spent + gathered

    def _forward(self, action: Action, step: int) -> None:
        self._hooks.phase("forward", step)
        hop = self._hops[action.stage, action.number]
        batch = self._batch(step, action.number, hop)
        entry: Boundary | None = None
        if hop.first == 0 and batch is not None:
            entry = batch.tokens
        if entry is None:
            entry = self._take("F", action.stage, action.number)
        documents = self._data.documents(step, action.number)
        result = self._computation.forward(hop, step, action.number, entry, batch, documents)
        if hop.stop == len(self._plan.units) and action.stage in self._loss_stages:
            self._tell_loss(action.number)
        after = self._next["F", action.stage, action.number]
        if after:
            self._pass_on("F", action, after, result)
        self._hooks.gaps.forwarded()

    def _take(self, what: str, stage: str, micro_batch: int) -> Boundary:
        """A message, waited for; state may be copied meanwhile."""
        if self._gathers is not None:
            self._gathers.finish_before_waiting()
        self._hooks.gaps.waiting((what, stage, micro_batch))
        try:
            return self._messages.take(what, stage, micro_batch)
        finally:
            self._hooks.gaps.going_on()

    def _tell_loss(self, micro_batch: int) -> None:
        """Its loss is known, and this worker is the one to say it."""
        if self._completion is None or self._completion.counts_loss(micro_batch):
            loss = self._computation.losses[micro_batch]
            self.losses[micro_batch] = (loss, self._num_tokens[micro_batch])
            self._record.loss_known(micro_batch)
            self._noted.append((self._device_log.length, (LOSS_ADDEND,)))

    def _batch(self, step: int, micro_batch: int, hop: Hop) -> MicroBatch | None:
        """Needed at both ends of a route."""
        if hop.first > 0 and hop.stop < len(self._plan.units):
            return None
        if micro_batch not in self._batches:
            made = self._data.micro_batch(step, micro_batch)
            device = next(iter(self._state.slices.values())).parameter.device
            # Counted here, since asking the device would wait for everything that runs on it.
            self._num_tokens[micro_batch] = made.num_tokens
            self._batches[micro_batch] = made.on(device)
        return self._batches[micro_batch]

    def _backward(self, action: Action, number: int) -> None:
        stage, micro_batch = action.stage, action.number
        self._micro_batch, self._action = micro_batch, number
        if action.kind == "W":
            self._computation.backward_weight(stage, micro_batch, self)
            return
        grad = None
        if self._next["F", stage, micro_batch]:
            grad = self._take("B", stage, micro_batch)
        self._hooks.phase("backward", self._step)
        if action.kind == "I":
            result = self._computation.backward_input(stage, micro_batch, grad)
        else:
            result = self._computation.backward(stage, micro_batch, grad, self)
        before = self._next["B", stage, micro_batch]
        if before:
            if result is None:
                raise InternalError(f"{stage} has no gradient for {before}")
            self._pass_on("B", action, before, result)
        self._reduction.progress()

    def begin(self, unit: int) -> None:
        """(Adding) A unit's gradients of the micro-batch are about to be added."""
        self._adding = unit
        if self._completion is not None:
            self._completion.save(unit, self._micro_batch)

    def end(self, unit: int) -> None:
        """(Adding) They have been."""
        addends = self._slots.addends[unit]
        if self._completion is not None:
            self._completion.restore()
            addends = self._completion.wanted(unit, self._micro_batch)
        self._record.added(unit, self._micro_batch, addends)
        self._noted.append((self._device_log.length, tuple(addends)))
        self._adding = -1
        if self._last[unit] == self._action:
            self._close(unit)

    def _close(self, unit: int) -> None:
        """The last gradient of a unit has been added: buckets with no unit left open may go."""
        for bucket in self._buckets_of[unit]:
            self._open[bucket] -= 1
            if self._open[bucket] == 0:
                self._reduction.mark_ready(bucket)

    def _pass_on(self, what: str, action: Action, peer: str, result: Boundary) -> None:
        stages = self._plan.stage_by_name
        if self._plan.stay_local(stages[action.stage], stages[peer], action.number):
            self._messages.keep(what, peer, action.number, result)
        else:
            self._made[what, action.stage, action.number] = result

    def _launched(self) -> None:
        self._num_launched += 1
        self._hooks.phase(f"reduce {self._num_launched}", self._step)

    def _agree(self) -> None:
        start = time.perf_counter()
        if self._gathers is not None:
            self._gathers.finish()
        self._messages.finish()
        self._reduction.finish()
        self._optimizer.collect()
        middle = time.perf_counter()
        self._stopwatch.open("agree")
        self._computation.finish()
        self._hooks.phase("reduced", self._step)
        spoken = [self.losses[number] for number in sorted(self.losses)]
        squares = self._reduction.squares(len(self._plan.units))
        # The one wait for the device in a step: no update is queued before it.
        told = torch.stack([*squares.unbind(), *(loss.to(squares) for loss, _ in spoken)]).tolist()
        ballot = Ballot(
            squares=torch.tensor(told[: len(squares)], dtype=torch.float64),
            loss_sum=sum(told[len(squares) :]),
            num_tokens=sum(num_tokens for _, num_tokens in spoken),
            stop=self._stop,
            ready=self._machine.vote(self._hooks.is_prepared(self._step)),
            eval_loss_sum=self._evaluated[0],
            eval_tokens=self._evaluated[1],
        )
        self._batches.clear()
        self._num_tokens.clear()
        self._hooks.gaps.waiting(AGREE)
        try:
            self._agreed = agree(
                ballot,
                self._all_workers,
                self._clip_norm,
                step=self._step,
                epoch=self._epoch,
                rate_factor=self._completion.share.rate_factor if self._completion else 1.0,
                entered=lambda: self._hooks.phase("agree", self._step),
            )
        finally:
            self._hooks.gaps.going_on()
        self._machine.agreed(self._agreed.switch, self._agreed.stop)
        self._hooks.phase("agreed", self._step)
        self._stopwatch.add("reduce", middle - start)
        self._stopwatch.close("agree")

    def _apply(self) -> None:
        self._stopwatch.open("optimizer")
        if self._agreed is not None:
            self._finish_step(self._agreed.outcome)
            self._computation.pace.updated()
        self._stopwatch.close("optimizer")

    def _finish_step(self, outcome: Outcome) -> None:
        """All of it or, if this process ends here, nothing that any other worker will ever see."""
        self._hooks.phase("apply", outcome.step)
        self._hooks.gaps.applying()
        with self._hooks.state_lock:
            if outcome.applied:
                self._optimizer.apply(outcome.step, outcome)
            self._machine.position.applied(outcome)
            self._state.clear_sums()
            self._hooks.after_apply(outcome)
        if outcome.applied:  # otherwise nothing is new, and what is kept may be needed
            self._hooks.gaps.applied(outcome.step + 1)
        self._hooks.phase("applied", outcome.step)


def _buckets_of(plan: Plan, unit: int) -> tuple[int, ...]:
    """A unit's own bucket, and those of units whose tensors it shares."""
    first = HolderMap(plan).units_of_tensor
    owners = {first[tensor.name][0] for tensor in plan.units[unit].tensors}
    return tuple(sorted(owners | {unit}))


def _neighbours(plan: Plan) -> dict[tuple[str, str, int], str]:
    """("F", stage, micro-batch) -> the stage after it on the route; "B" -> the one before; or
    "".
    """
    found: dict[tuple[str, str, int], str] = {}
    for number, route in enumerate(plan.routes):
        for at, hop in enumerate(route):
            found["F", hop.stage, number] = route[at + 1].stage if at + 1 < len(route) else ""
            found["B", hop.stage, number] = route[at - 1].stage if at > 0 else ""
    return found


def loss_stages(plan: Plan, worker: str) -> frozenset[str]:
    """Stages whose losses this worker reports: all tensor ranks compute them, the first tells."""
    return frozenset(
        stage.name
        for stage, position in plan.seats[worker]
        if stage.coordinates(position).get("tensor", 0) == 0
    )
