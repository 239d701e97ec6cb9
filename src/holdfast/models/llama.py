"""Llama by units: RMSNorm, rotary positions, SwiGLU, grouped-query attention, tied or untied head.

Shapes: B rows, T positions, D = dim, H query heads here, K key-value heads here, E = dim of a head.

Every worker of a tensor group has the full hidden state [B, T, D] and a share of the heads, of the
feed-forward columns and of the vocabulary. Shares may be uneven. A key-value head lies where its
query heads are, so at a degree that cuts through its query heads two workers hold it, each with the
gradient from its own query heads (`gradient_kind` "partial").

Computation is in the dtype of the parameters; the norm and the loss in at least float32. Rotary
pairs are (i, i + E/2), as in Hugging Face's Llama. Dropout is by number, on what attention and
feed-forward add to the hidden state: that is full and equal on all members, so they use equal
masks. There is no dropout on attention probabilities: fused kernels draw it themselves, not by
number.
"""

from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate
from math import pi, sqrt
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.data.by_number import stream
from holdfast.engine.compiled import Compiled
from holdfast.engine.data import Documents
from holdfast.engine.head_loss import head_loss, rows_at_a_time
from holdfast.engine.random import Device, check_probability, dropout, fill_bell
from holdfast.engine.tensor_parallel import (
    copy_to,
    reduce_from,
    vocab_embedding,
)
from holdfast.engine.unit_module import Call, UnitModule, UnitPlacement
from holdfast.errors import HoldfastError, InternalError
from holdfast.models.presets import LlamaOptions, RopeScaling
from holdfast.plan.model_catalog import LlamaShape, llama_units
from holdfast.plan.units import Box, TensorSpec, Unit

PLAIN = LlamaOptions()


def build_unit(
    shape: LlamaShape,
    unit_name: str,
    place: UnitPlacement,
    *,
    options: LlamaOptions = PLAIN,
    seed: int | None = None,
) -> UnitModule:
    """The unit as one worker holds it; with a seed, filled with its initial values."""
    check_probability(options.dropout)
    if shape.head_dim % 2:
        raise HoldfastError(f"dim of a head is {shape.head_dim}; rotary positions need an even one")
    unit = _find_unit(shape, unit_name)
    kinds: dict[str, type[Embedding | Head]] = {"embed": Embedding, "head": Head}
    module: UnitModule = kinds.get(unit_name, Block)(shape, options, unit, place)
    if seed is not None:
        for spec in unit.tensors:
            fill_initial(module.tensors[spec.name], shape, spec, seed, module.boxes[spec.name])
    return module


def _find_unit(shape: LlamaShape, unit_name: str) -> Unit:
    units = llama_units(shape)
    for unit in units:
        if unit.name == unit_name:
            return unit
    raise HoldfastError(
        f"the model has no unit {unit_name!r}; it has embed, block.0 .. {units[-2].name}, head"
    )


def initial_std(shape: LlamaShape, spec: TensorSpec) -> float:
    """1 / sqrt(inputs), less for what adds to the hidden state; 0 for norms, which start at 1."""
    if len(spec.shape) == 1:
        return 0.0
    std = 1 / sqrt(spec.shape[1])
    adds = spec.name.endswith((".wo", ".w2"))
    return std / sqrt(2 * shape.num_layers) if adds else std


def fill_initial(
    out: Tensor, shape: LlamaShape, spec: TensorSpec, seed: int, box: Box | None = None
) -> None:
    """Write the initial values of `box` of a tensor: the bits of that part of the whole one."""
    std = initial_std(shape, spec)
    if std == 0.0:
        with torch.no_grad():
            out.fill_(1.0)
    else:
        fill_bell(out, stream(seed, "init", spec.name), spec.shape, box, std=std)


def initial_state(
    shape: LlamaShape, seed: int, *, dtype: torch.dtype = torch.float32, device: Device = None
) -> dict[str, Tensor]:
    """The whole model's initial values by tensor name. For small models: nothing is split."""
    specs = {spec.name: spec for unit in llama_units(shape) for spec in unit.tensors}
    state: dict[str, Tensor] = {}
    for name, spec in specs.items():
        state[name] = torch.empty(spec.shape, dtype=dtype, device=device)
        fill_initial(state[name], shape, spec, seed)
    return state


class Embedding(UnitModule):
    """tokens [B, T] -> hidden [B, T, D]"""

    weight: nn.Parameter

    def __init__(
        self, shape: LlamaShape, options: LlamaOptions, unit: Unit, place: UnitPlacement
    ) -> None:
        super().__init__(unit, place)
        ((self.low, _), _) = self.boxes["embed.weight"]

    def forward(self, tokens: Tensor, call: Call) -> Tensor:
        self.check(call)
        return vocab_embedding(tokens, self.weight, self.low, call.group)


class Block(UnitModule):
    """hidden [B, T, D] -> hidden [B, T, D]"""

    attn_norm: nn.Parameter
    wq: nn.Parameter
    wk: nn.Parameter
    wv: nn.Parameter
    wo: nn.Parameter
    mlp_norm: nn.Parameter
    w1: nn.Parameter
    w2: nn.Parameter
    w3: nn.Parameter

    def __init__(
        self, shape: LlamaShape, options: LlamaOptions, unit: Unit, place: UnitPlacement
    ) -> None:
        super().__init__(unit, place)
        self.head_dim = shape.head_dim
        self.options = options
        width = shape.num_heads // shape.num_kv_heads
        keys = [query // width for query in self._heads("wq")]
        self.followers = tuple(keys.count(key) for key in self._heads("wk"))
        """For every key-value head here, how many query heads here use it."""

    def _heads(self, tensor: str) -> range:
        (low, high), _ = self.boxes[f"{self.unit.name}.{tensor}"]
        return range(low // self.head_dim, high // self.head_dim)

    def forward(self, x: Tensor, call: Call) -> Tensor:
        self.check(call)
        if call.compiled and self._is_pure(call):
            attention = (self.attn_norm, self.wq, self.wk, self.wv, self.wo)
            weights = (*attention, self.mlp_norm, self.w1, self.w2, self.w3)
            cos, sin = rope_tables(x.shape[1], self.head_dim, self.options, x.dtype, x.device)
            pure = _compiled_block(self.head_dim, self.options.norm_eps, self.followers)
            whole: Tensor = pure(x, cos, sin, *weights, compiling=call.compiling)
            return whole
        x = x + self._drop(self._attention(self._norm(x, self.attn_norm), call), call, "attention")
        return x + self._drop(self._mlp(self._norm(x, self.mlp_norm), call), call, "mlp")

    def _is_pure(self, call: Call) -> bool:
        """It talks to no other worker, draws nothing, and every row is one document."""
        draws = self.training and self.options.dropout > 0.0
        return call.group.size == 1 and call.documents is None and not draws

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight, self.options.norm_eps)

    def _attention(self, x: Tensor, call: Call) -> Tensor:
        x = copy_to(x, call.group)
        cos, sin = rope_tables(x.shape[1], self.head_dim, self.options, x.dtype, x.device)
        if call.documents is not None:
            places = document_positions(call.documents, x.device)
            cos, sin = cos[places], sin[places]
        q, k, v = queries_keys_values(x, self.wq, self.wk, self.wv, self.head_dim, cos, sin)
        mixed = attend_inside(call.documents, q, k, v, self.followers)
        out = F.linear(mixed.transpose(1, 2).flatten(2), self.wo)
        return reduce_from(out, call.group)

    def _mlp(self, x: Tensor, call: Call) -> Tensor:
        return reduce_from(mlp(copy_to(x, call.group), self.w1, self.w2, self.w3), call.group)

    def _drop(self, x: Tensor, call: Call, site: str) -> Tensor:
        if not self.training or self.options.dropout == 0.0:
            return x
        if call.numbers is None:
            raise InternalError(f"unit {self.unit.name!r} has dropout, the call brings no numbers")
        return dropout(x, call.numbers.dropout(self.unit.name, site), self.options.dropout)


class Head(UnitModule):
    """hidden [B, T, D] -> sum of the losses of the call's targets, at least float32

    A sum, not a mean: the step divides once, by the tokens of all its micro-batches.
    """

    norm: nn.Parameter
    weight: nn.Parameter

    def __init__(
        self, shape: LlamaShape, options: LlamaOptions, unit: Unit, place: UnitPlacement
    ) -> None:
        super().__init__(unit, place)
        self.norm_eps, self.rows = options.norm_eps, rows_at_a_time(shape.vocab)
        ((self.low, _), _) = self.boxes[unit.tensors[1].name]

    def forward(self, x: Tensor, call: Call) -> Tensor:
        self.check(call)
        if call.targets is None:
            raise InternalError("the head computes the loss, the call brings no targets")
        hidden = copy_to(rms_norm(x, self.norm, self.norm_eps), call.group)
        return head_loss(
            hidden,
            self.weight,
            call.targets,
            self.low,
            call.group,
            rows=self.rows,
            compiled=call.compiled,
            compiling=call.compiling,
        )


@lru_cache(maxsize=16)
def _compiled_block(head_dim: int, norm_eps: float, followers: tuple[int, ...]) -> Compiled:
    """A block on a worker alone, as a function of its input, the tables and its tensors."""

    def block(
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        attn_norm: Tensor,
        wq: Tensor,
        wk: Tensor,
        wv: Tensor,
        wo: Tensor,
        mlp_norm: Tensor,
        *feed_forward: Tensor,
    ) -> Tensor:
        normed = rms_norm(x, attn_norm, norm_eps)
        q, k, v = queries_keys_values(normed, wq, wk, wv, head_dim, cos, sin)
        mixed = attend(q, k, v, followers)
        x = x + F.linear(mixed.transpose(1, 2).flatten(2), wo)
        return x + mlp(rms_norm(x, mlp_norm, norm_eps), *feed_forward)

    return Compiled(block)


def queries_keys_values(
    x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, head_dim: int, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """[B, heads, T, E] each, turned by their positions."""
    heads = (x.shape[0], x.shape[1], -1, head_dim)
    q = rotate(F.linear(x, wq).view(heads), cos, sin)
    k = rotate(F.linear(x, wk).view(heads), cos, sin)
    v = F.linear(x, wv).view(heads)
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def mlp(x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor) -> Tensor:
    return F.linear(F.silu(F.linear(x, w1)) * F.linear(x, w3), w2)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Torch computes it in float32 where the dtype is shorter."""
    return F.rms_norm(x, weight.shape, weight, eps)


def rope_tables(
    length: int, head_dim: int, options: LlamaOptions, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines [T, 1, E] of the positions 0 .. T - 1."""
    # Tables are made for powers of two, so that varying lengths share a few of them.
    size = 1 << max(6, (length - 1).bit_length())
    cos, sin = _tables(size, head_dim, options.rope_theta, options.rope_scaling, dtype, device)
    return cos[:length], sin[:length]


@lru_cache(maxsize=8)
def _tables(
    length: int,
    head_dim: int,
    theta: float,
    scaling: RopeScaling | None,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    positions = torch.arange(length, dtype=torch.float64)
    angles = torch.outer(positions, rope_rates(head_dim, theta, scaling)).unsqueeze(1)
    cos, sin = angles.cos(), angles.sin()
    return (
        torch.cat((cos, cos), -1).to(device, dtype),
        torch.cat((-sin, sin), -1).to(device, dtype),
    )


def rope_rates(head_dim: int, theta: float, scaling: RopeScaling | None = None) -> Tensor:
    """Radians per position. With scaling, rotations that turn `high_freq_factor` times or more
    within the original length stay, those below `low_freq_factor` are slowed by `factor`, and in
    between it is a mixture of both.
    """
    rates = theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    if scaling is None:
        return rates
    turns = scaling.original_length * rates / (2 * pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return rates * (kept + (1 - kept) / scaling.factor)


class _Rotate(torch.autograd.Function):
    """The inverse rotation is the gradient: nothing but the tables is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        turned = grad.roll(grad.shape[-1] // 2, -1)
        return torch.addcmul(grad * cos, turned, sin, value=-1), None, None


_rotate: Callable[..., Tensor] = _Rotate.apply


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions on [B, T, heads, E]: the pairs (i, i + E/2) turned by their angles."""
    return _rotate(x, cos, sin)


@lru_cache(maxsize=8)
def document_positions(documents: Documents, device: torch.device) -> Tensor:
    """[B, T]: of every token in its document."""
    rows = [torch.cat([torch.arange(length) for length in row]) for row in documents]
    return _to(torch.stack(rows), device)


@lru_cache(maxsize=8)
def _document_ends(documents: Documents, device: torch.device) -> Tensor:
    """Where every document begins and the last one ends, all rows one behind the other."""
    lengths = [length for row in documents for length in row]
    return _to(torch.tensor([0, *accumulate(lengths)], dtype=torch.int32), device)


def _to(table: Tensor, device: torch.device) -> Tensor:
    """Not waited for: the blocks of a micro-batch share it."""
    if device.type == "cpu":
        return table
    return table.pin_memory().to(device, non_blocking=True)


def attend_inside(
    documents: Documents | None, q: Tensor, k: Tensor, v: Tensor, followers: tuple[int, ...]
) -> Tensor:
    """Attention of every document on itself; without documents, of every row."""
    if documents is None:
        return attend(q, k, v, followers)
    if q.is_cuda and q.dtype in (torch.bfloat16, torch.float16):
        return _attend_at_once(documents, q, k, v, followers)
    rows: list[Tensor] = []
    for row, lengths in enumerate(documents):
        mixed: list[Tensor] = []
        for end, length in zip(accumulate(lengths), lengths, strict=True):
            a, b, c = (t[row : row + 1, :, end - length : end] for t in (q, k, v))
            mixed.append(attend(a, b, c, followers))
        rows.append(torch.cat(mixed, dim=2))
    return torch.cat(rows)


def _attend_at_once(
    documents: Documents, q: Tensor, k: Tensor, v: Tensor, followers: tuple[int, ...]
) -> Tensor:
    """With a device's kernel for sequences of varying length: one call for all documents."""
    from torch.nn.attention.varlen import varlen_attn  # torch 2.10 and newer

    ends, longest = _document_ends(documents, q.device), max(map(max, documents))
    keys, values = _repeat(k, followers), _repeat(v, followers)
    queries, keys, values = (x.transpose(1, 2).flatten(0, 1) for x in (q, keys, values))
    mixed = varlen_attn(queries, keys, values, ends, ends, longest, longest, window_size=(-1, 0))
    assert isinstance(mixed, Tensor)
    rows, heads, length, width = q.shape
    return mixed.view(rows, length, heads, width).transpose(1, 2)


def attend(q: Tensor, k: Tensor, v: Tensor, followers: tuple[int, ...]) -> Tensor:
    """Causal attention of [B, H, T, E] on [B, K, T, E].

    The first `followers[0]` query heads use key-value head 0, and so on.
    """
    if len(set(followers)) > 1:
        k, v = _repeat(k, followers), _repeat(v, followers)
    grouped = k.shape[1] != q.shape[1]
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)


def _repeat(x: Tensor, counts: tuple[int, ...]) -> Tensor:
    """Head i `counts[i]` times. Not by index: its gradient is a sum in no fixed order on a GPU."""
    parts = [x[:, i : i + 1].expand(-1, count, -1, -1) for i, count in enumerate(counts)]
    return torch.cat(parts, dim=1)
