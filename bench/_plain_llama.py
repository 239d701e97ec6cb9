"""Llama as one writes it in plain PyTorch, with the training loops that people write around it.

plain   compiled blocks and a compiled loss; fused AdamW. Mixed precision: float32 masters of
        bfloat16 weights, gradients summed in float32 by autograd
fsdp    the same model under FSDP2's `fully_shard` (one rank): its policy for mixed precision,
        parameters kept gathered over the micro-batches of a step, gradients reduced once
"""

import sys
from collections.abc import Callable
from typing import Any

import msgspec
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from _turns import Place, tokens_of
from holdfast.plan.model_catalog import LlamaShape

BETAS, EPS, DECAY, RATE, CLIP = (0.9, 0.95), 1e-8, 0.1, 1e-4, 1.0


class Work(msgspec.Struct, frozen=True):
    """What every contender trains."""

    shape: LlamaShape
    seq_len: int
    rows: int
    micro_batches: int
    is_mixed: bool
    block: int


def rotary(length: int, dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    rates = 10000.0 ** -(torch.arange(0, dim, 2, device=device).float() / dim)
    angles = torch.outer(torch.arange(length, device=device).float(), rates)
    angles = torch.cat((angles, angles), -1)
    return angles.cos().bfloat16(), angles.sin().bfloat16()


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat((-high, low), -1) * sin


class PlainBlock(nn.Module):
    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        dim, self.head_dim = shape.dim, shape.head_dim
        wide = shape.num_kv_heads * shape.head_dim
        self.attn_norm, self.mlp_norm = nn.RMSNorm(dim, eps=1e-5), nn.RMSNorm(dim, eps=1e-5)
        self.wq, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(2))
        self.wk, self.wv = (nn.Linear(dim, wide, bias=False) for _ in range(2))
        self.w1, self.w3 = (nn.Linear(dim, shape.hidden, bias=False) for _ in range(2))
        self.w2 = nn.Linear(shape.hidden, dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        normed = self.attn_norm(x)
        q, k, v = (
            linear(normed).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for linear in (self.wq, self.wk, self.wv)
        )
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.wo(mixed.transpose(1, 2).flatten(2))
        normed = self.mlp_norm(x)
        found: Tensor = x + self.w2(F.silu(self.w1(normed)) * self.w3(normed))
        return found


class PlainLlama(nn.Module):
    def __init__(self, shape: LlamaShape, seq_len: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(shape.vocab, shape.dim)
        self.blocks = nn.ModuleList([PlainBlock(shape) for _ in range(shape.num_layers)])
        self.norm = nn.RMSNorm(shape.dim, eps=1e-5)
        self.head = nn.Linear(shape.dim, shape.vocab, bias=False)
        self.seq_len, self.head_dim = seq_len, shape.head_dim
        self.tables: tuple[Tensor, Tensor] | None = None

    def forward(self, tokens: Tensor) -> Tensor:
        if self.tables is None:
            self.tables = rotary(self.seq_len, self.head_dim, tokens.device)
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, *self.tables)
        found: Tensor = self.head(self.norm(x))
        return found


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")


def make_model(work: Work, dtype: torch.dtype) -> PlainLlama:
    with torch.device("cuda"):
        model = PlainLlama(work.shape, work.seq_len).to(dtype)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0, 0.02) if weight.ndim > 1 else weight.fill_(1)
    for block in model.blocks:
        block.compile()
    return model


def groups(parameters: list[nn.Parameter]) -> list[dict[str, Any]]:
    return [
        {"params": [p for p in parameters if (p.ndim > 1) is decays], "weight_decay": decay}
        for decays, decay in ((True, DECAY), (False, 0.0))
    ]


def adamw(parameters: list[nn.Parameter]) -> torch.optim.AdamW:
    return torch.optim.AdamW(groups(parameters), lr=RATE, betas=BETAS, eps=EPS, fused=True)


class Batches:
    """The same work as a job's data: tokens by number, pinned, copied beside computation."""

    def __init__(self, work: Work) -> None:
        self._work, self._next = work, 0

    def next(self) -> tuple[Tensor, Tensor]:
        work, rows = self._work, []
        for _ in range(work.rows):
            rows.append(tokens_of(self._next, work.seq_len, work.shape.vocab))
            self._next += 1
        text = torch.stack(rows)
        tokens, targets = (part.contiguous().pin_memory() for part in (text[:, :-1], text[:, 1:]))
        return tokens.to("cuda", non_blocking=True), targets.to("cuda", non_blocking=True)


def plain(work: Work) -> Callable[[], float]:
    model = make_model(work, torch.bfloat16)
    weights = list(model.parameters())
    masters = weights
    if work.is_mixed:
        masters = [nn.Parameter(weight.detach().float()) for weight in weights]
        for weight in weights:
            weight.grad_dtype = torch.float32
    optimizer, batches = adamw(masters), Batches(work)
    compiled_loss = torch.compile(loss_of)
    scale = 1.0 / (work.rows * work.seq_len * work.micro_batches)

    def step() -> float:
        losses = []
        for _ in range(work.micro_batches):
            tokens, targets = batches.next()
            loss = compiled_loss(model(tokens), targets) * scale
            torch.autograd.backward(loss)
            losses.append(loss.detach())
        for master, weight in zip(masters, weights, strict=True):
            master.grad = weight.grad
        torch.nn.utils.clip_grad_norm_(masters, CLIP, foreach=True)
        optimizer.step()
        with torch.no_grad():
            if work.is_mixed:
                torch._foreach_copy_(list[Tensor](weights), list[Tensor](masters))
        for weight in [*weights, *masters]:
            weight.grad = None
        return float(torch.stack(losses).sum())

    return step


def fsdp(work: Work) -> Callable[[], float]:
    import torch.distributed as dist
    from torch._C._distributed_c10d import HashStore
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    dist.init_process_group("nccl", store=HashStore(), rank=0, world_size=1)
    model = make_model(work, torch.float32 if work.is_mixed else torch.bfloat16)
    mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    policy = mixed if work.is_mixed else MixedPrecisionPolicy()
    for block in model.blocks:
        fully_shard(block, mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mp_policy=policy, reshard_after_forward=False)
    parameters = list(model.parameters())
    optimizer, batches = adamw(parameters), Batches(work)
    compiled_loss = torch.compile(loss_of)
    scale = 1.0 / (work.rows * work.seq_len * work.micro_batches)

    def step() -> float:
        losses = []
        for number in range(work.micro_batches):
            is_last = number + 1 == work.micro_batches
            model.set_requires_gradient_sync(is_last)  # type: ignore[operator]
            model.set_reshard_after_backward(is_last)  # type: ignore[operator]
            tokens, targets = batches.next()
            loss = compiled_loss(model(tokens), targets) * scale
            torch.autograd.backward(loss)
            losses.append(loss.detach())
        torch.nn.utils.clip_grad_norm_(parameters, CLIP, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(torch.stack(losses).sum())

    return step


def main(kind: str, work: Work, address: str) -> None:
    torch.cuda.set_device(0)
    step = {"plain": plain, "fsdp": fsdp}[kind](work)
    step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    place = Place(address)
    while place.arrive():
        for _ in range(work.block):
            print(f"loss {step():.4f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], msgspec.json.decode(sys.argv[2], type=Work), sys.argv[3])
