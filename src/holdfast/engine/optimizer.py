"""The optimizer of a job over the slices of a worker.

Every tensor has its rule (`optimizer_config`), and its plan says what is kept of it and whether a
slice can be updated as it is (`plan/state`). There are two ways:

    in place  one torch optimizer per class, its state in the slices, so that it moves with them
    alone     a tensor at a time, from values to values: where the update needs the whole tensor
              (Muon), or where state is kept in another dtype than the arithmetic has

A tensor that is needed whole and is cut is put together before the agreement of the step, while a
worker may still be lost (`whole_tensors`): after it, an update needs no other worker.

Holders of a slice must come to the same bits, however their stages are cut. On a processor torch's
fused kernel rounds the last few elements of a tensor otherwise than those before them, so AdamW is
computed in whole vectors (`whole_vectors`).
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.optim import Optimizer

from holdfast.control.report import Outcome
from holdfast.engine.optimizer_config import OptimizerConfig, UpdateRule
from holdfast.engine.state import Slice, TensorState, dtype_name
from holdfast.engine.torch_optimizers import make_optimizer, step_alone, with_step
from holdfast.engine.whole_tensors import WholeTensors
from holdfast.engine.whole_vectors import in_whole_vectors
from holdfast.plan.holders import HolderMap
from holdfast.plan.state import PARAMETER, StateSpec
from holdfast.plan.units import TensorSpec


class SliceOptimizer:
    """Applies a step to the slices of a worker."""

    def __init__(
        self,
        config: OptimizerConfig,
        state: TensorState,
        step: int,
        wholes: WholeTensors | None = None,
    ) -> None:
        """`step`: how many updates the slices have had; `wholes`: needed where tensors that are
        cut are updated whole.
        """
        self._config, self._num_updates = config, step
        self._wholes = wholes or WholeTensors({}, {})
        self._slices = list(state.slices.values())
        self._buckets = list(state.buckets.values())
        specs = HolderMap(state.plan).tensors
        self._rules = {s.tensor: config.rule_of(s.tensor, len(s.box)) for s in self._slices}
        kept = {s.tensor: _kept(s, specs[s.tensor]) for s in self._slices}
        in_place = self._by_rule(s for s in self._slices if _is_in_place(kept[s.tensor]))
        self._vectors = {rule: s for rule, s in in_place.items() if self._is_plain(rule)}
        """AdamW's."""
        self._in_place = list(self._optimizers(in_place))
        self._alone = [s for s in self._slices if not _is_in_place(kept[s.tensor])]

    def _by_rule(self, slices: Iterable[Slice]) -> dict[UpdateRule, list[Slice]]:
        found: dict[UpdateRule, list[Slice]] = {}
        for piece in slices:
            found.setdefault(self._rules[piece.tensor], []).append(piece)
        return found

    def _is_plain(self, rule: UpdateRule) -> bool:
        return rule.name == "AdamW" and not (self._config.options and self._config.name == "AdamW")

    def _optimizers(
        self, in_place: Mapping[UpdateRule, list[Slice]]
    ) -> Iterator[tuple[Optimizer, list[UpdateRule]]]:
        """Of torch, with the rule of each of their groups."""
        others = [rule for rule in in_place if rule not in self._vectors]
        for name in dict.fromkeys(rule.name for rule in others):
            rules = [rule for rule in others if rule.name == name]
            groups = [(rule, [s.updated for s in in_place[rule]]) for rule in rules]
            made = make_optimizer(self._config, name, groups)
            for piece in (piece for rule in rules for piece in in_place[rule]):
                state = with_step(piece.state, self._num_updates, piece.updated)
                made.state[piece.updated] = state
            yield made, rules

    def collect(self) -> None:
        """All gradients are reduced: fetch from others what the update will need."""
        self._wholes.collect()

    def apply(self, step: int, outcome: Outcome) -> None:
        """Turn summed gradients into an update; `outcome` is the same on all holders."""
        gradients = [gradient for bucket in self._buckets for gradient in bucket.gradients()]
        torch._foreach_mul_([*gradients, *self._wholes.gradients()], outcome.gradient_factor)
        self.apply_scaled(step, outcome)

    @torch.no_grad()
    def apply_scaled(self, step: int, outcome: Outcome) -> None:
        """The same with gradients that have their factor already."""
        for piece in self._slices:
            piece.give_gradient()
        for rule, slices in self._vectors.items():
            rate = self._rate(rule, step, outcome)
            in_whole_vectors(
                partial(_adamw, self._config, self._num_updates + 1, rate, rule.weight_decay),
                [piece.updated for piece in slices],
                [piece.gradient for piece in slices],
                [piece.state["exp_avg"] for piece in slices],
                [piece.state["exp_avg_sq"] for piece in slices],
            )
        for made, rules in self._in_place:
            for group, rule in zip(made.param_groups, rules, strict=True):
                group["lr"] = self._rate(rule, step, outcome)
            made.step()
        for piece in self._alone:
            self._update_alone(piece, self._rate(self._rules[piece.tensor], step, outcome))
        for piece in self._slices:
            piece.refresh()
        self._wholes.clear()
        self._num_updates += 1

    def _rate(self, rule: UpdateRule, step: int, outcome: Outcome) -> float:
        return self._config.rate_at(step, rule.learning_rate) * outcome.rate_factor

    def _update_alone(self, piece: Slice, rate: float) -> None:
        index: tuple[slice, ...] = ()
        if self._wholes.has(piece.tensor):
            index = self._wholes.place(piece.tensor)
            values, gradient = self._wholes.take(piece.tensor)
        else:
            values = {kind: piece.whole(kind) for kind in piece.kinds}
            gradient = piece.summed()
        dtype = piece.updated.dtype
        wide = {kind: found.to(dtype) for kind, found in values.items()}
        wide[PARAMETER] = wide[PARAMETER].clone()
        rule = self._rules[piece.tensor]
        after = step_alone(self._config, rule, wide, gradient, self._num_updates, rate)
        for kind, found in after.items():
            piece.whole(kind).copy_(found[index] if index else found)


def _kept(piece: Slice, spec: TensorSpec) -> StateSpec:
    return spec.kept(dtype_name(piece.updated.dtype))


def _is_in_place(spec: StateSpec) -> bool:
    return spec.by_slice and len({kind.dtype for kind in spec.kinds}) == 1


def advance_moments(
    config: OptimizerConfig, gradient: Tensor, moments: Mapping[str, Tensor]
) -> None:
    """The moments after an update with this (scaled) gradient, in place, by the same arithmetic.
    They depend neither on the parameter nor on the rate.
    """
    in_whole_vectors(
        partial(_adamw, config, 1, 0.0, 0.0),
        [torch.zeros_like(gradient)],
        [gradient],
        [moments["exp_avg"]],
        [moments["exp_avg_sq"]],
    )


def _adamw(
    config: OptimizerConfig,
    num_updates: int,
    rate: float,
    decay: float,
    parameters: list[Tensor],
    gradients: list[Tensor],
    first: list[Tensor],
    second: list[Tensor],
) -> None:
    # Filled there: a value that is copied to a device would be waited for.
    count = torch.full((), float(num_updates), device=parameters[0].device)
    torch._fused_adamw_(
        parameters,
        gradients,
        first,
        second,
        [],
        [count] * len(parameters),
        lr=rate,
        beta1=config.betas[0],
        beta2=config.betas[1],
        weight_decay=decay,
        eps=config.eps,
        amsgrad=False,
        maximize=False,
    )
