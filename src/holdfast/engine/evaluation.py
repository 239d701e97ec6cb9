"""An evaluation: the validation set, forward only, under the plan in force, before a step begins.

Its losses travel in the agreement of that step, so all workers get the same number or none does.
If the step breaks off, it is evaluated again where the step is completed: the state is still the
same, and no number is lost or counted twice. Nothing of training is touched: no gradients, no
record of the step, no random numbers (dropout is off), no timing that the detector learns from.

Micro-batches take the routes of the plan, in rounds of as many as a step has. All workers go
through them in one order, micro-batch by micro-batch and hop by hop; so, as in a step, every send
and receive may block without any worker blocking for ever. Units that are cut over a shard group
are gathered before, all of them: ranks compute different numbers of micro-batches.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.detect.facts import Workload
from holdfast.engine.boundary import Boundary, parts
from holdfast.engine.compute import total
from holdfast.engine.data import DataSource, Documents, MicroBatch
from holdfast.engine.exchange import Messages
from holdfast.engine.groups import group_errors_unwrapped
from holdfast.engine.sharding import Gathers
from holdfast.engine.tensor_parallel import TensorGroup
from holdfast.engine.unit_module import Call, UnitModule
from holdfast.plan.actions import Action
from holdfast.plan.plan import Hop, Plan


@dataclass(frozen=True, slots=True)
class EvalPlan:
    """What is evaluated, and how often; the same under every plan."""

    data: DataSource
    num_micro_batches: int
    every_steps: int
    first_step: int = 0
    """Of the data: which of its numbers the validation set has."""

    def is_due(self, step: int) -> bool:
        return step % self.every_steps == 0


class _Round:
    """(DataSource) The validation set's micro-batches from one on, numbered from 0 as the plan's
    routes are; the same in every step.
    """

    def __init__(self, plan: EvalPlan, first: int) -> None:
        self._data, self._step, self._first = plan.data, plan.first_step, first

    def micro_batch(self, step: int, index: int) -> MicroBatch:
        return self._data.micro_batch(self._step, self._first + index)

    def shape(self, step: int, index: int) -> tuple[int, int]:
        return self._data.shape(self._step, self._first + index)

    def documents(self, step: int, index: int) -> Documents | None:
        return self._data.documents(self._step, self._first + index)

    def workload(self, step: int, index: int) -> Workload:
        return self._data.workload(self._step, self._first + index)


class Evaluation:
    """One worker's part in the evaluations under one plan."""

    def __init__(
        self,
        plan: Plan,
        worker: str,
        evaluated: EvalPlan,
        *,
        units: Mapping[int, UnitModule],
        groups: Mapping[str, TensorGroup],
        gathers: Gathers | None,
        loss_stages: frozenset[str],
        messages: Callable[[Sequence[Action]], Messages],
        device: torch.device,
    ) -> None:
        """`loss_stages`: whose losses this worker tells; `messages`: makes those of a list."""
        self._plan, self._worker, self.evaluated = plan, worker, evaluated
        self._units, self._groups, self._gathers = units, groups, gathers
        self._loss_stages, self._make_messages, self._device = loss_stages, messages, device
        self._messages: dict[int, Messages] = {}
        """By the number of micro-batches of a round."""

    def run(self, progress: Callable[[int], object]) -> tuple[float, int]:
        """The sum of the losses that this worker tells, and of how many targets. `progress` is
        called with a number that rises.
        """
        count, size = self.evaluated.num_micro_batches, self._plan.num_micro_batches
        found: list[tuple[Tensor, int]] = []
        training = [unit for unit in self._units.values() if unit.training]
        try:
            for unit in training:
                unit.eval()
            self._gather()
            with torch.no_grad(), group_errors_unwrapped():
                for first in range(0, count, size):
                    told = min(size, count - first)
                    found += self._run_round(first, told, progress)
        finally:
            for unit in training:
                unit.train()
            if self._gathers is not None:
                self._gathers.begin()  # drops all
        return total(loss for loss, _ in found), sum(num_tokens for _, num_tokens in found)

    def _gather(self) -> None:
        if self._gathers is None:
            return
        self._gathers.begin()
        held = sorted(self._units)
        for unit in held:
            self._gathers.ask(unit)
        for unit in held:
            self._gathers.need(unit)

    def _run_round(
        self, first: int, count: int, progress: Callable[[int], object]
    ) -> list[tuple[Tensor, int]]:
        data = _Round(self.evaluated, first)
        if count not in self._messages:
            self._messages[count] = self._make_messages(self._receives(count))
        messages = self._messages[count]
        messages.begin(data, 0)
        found = []
        for number in range(count):
            progress(first + number)
            for at, hop in enumerate(self._plan.routes[number]):
                if self._computes(hop, number):
                    told = self._compute(data, messages, number, at)
                    found += [told] if told is not None else []
        messages.finish()
        return found

    def _computes(self, hop: Hop, number: int) -> bool:
        return self._worker in self._plan.computing(self._plan.stage(hop.stage), number)

    def _receives(self, count: int) -> list[Action]:
        """In the order in which they are needed."""
        return [
            self._receive(number, at)
            for number in range(count)
            for at, hop in enumerate(self._plan.routes[number])
            if at and self._computes(hop, number) and not self._stays(number, at - 1)
        ]

    def _receive(self, number: int, at: int) -> Action:
        route = self._plan.routes[number]
        return Action("RF", number, route[at].stage, route[at - 1].stage)

    def _stays(self, number: int, at: int) -> bool:
        """Is what this hop makes used by the same workers?"""
        source, target = (
            self._plan.stage(hop.stage) for hop in self._plan.routes[number][at : at + 2]
        )
        return self._plan.stay_local(source, target, number)

    def _compute(
        self, data: _Round, messages: Messages, number: int, at: int
    ) -> tuple[Tensor, int] | None:
        """One hop; the loss, where it ends here and this worker tells it."""
        route = self._plan.routes[number]
        hop, is_last = route[at], at + 1 == len(route)
        made = data.micro_batch(0, number) if at == 0 or is_last else None
        batch = made.on(self._device) if made is not None else None
        if at == 0 and batch is not None:
            x: Boundary = batch.tokens
        else:
            if not self._stays(number, at - 1):
                messages.reached(self._receive(number, at))
            x = messages.take("F", hop.stage, number)
        targets = batch.targets if batch is not None else None
        call = Call(self._groups[hop.stage], targets, None, data.documents(0, number))
        for unit in range(hop.first, hop.stop):
            x = self._units[unit](x, call)
        if not is_last:
            self._pass_on(messages, number, at, x)
            return None
        (loss,) = parts(x)
        tells = hop.stage in self._loss_stages and made is not None
        return (loss, made.num_tokens) if tells and made is not None else None

    def _pass_on(self, messages: Messages, number: int, at: int, x: Boundary) -> None:
        hop, after = self._plan.routes[number][at : at + 2]
        if self._stays(number, at):
            messages.keep("F", after.stage, number, x)
        else:
            messages.put("F", hop.stage, after.stage, number, x)
