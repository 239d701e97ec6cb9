"""A plain Llama in one process, written for the tests alone: the answer others have to match.

It takes nothing from the engine or the models and does everything the long way: complex rotations,
explicit score matrices, one `nn.Linear` per matrix. Parameters are exchanged under the names of the
plan (`embed.weight`, `block.0.wq`, `head.norm`, ...).
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

Mask = Callable[[str, str, tuple[int, ...]], Tensor]
"""(unit, site, shape) -> factors to multiply with: 0 where dropped, the scale elsewhere."""


class Norm(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        mean_square = (x * x).sum(dim=-1, keepdim=True) / x.shape[-1]
        return x / torch.sqrt(mean_square + self.eps) * self.weight


class Attention(nn.Module):
    def __init__(self, shape, theta):
        super().__init__()
        self.num_heads, self.num_kv_heads = shape.num_heads, shape.num_kv_heads
        self.head_dim, self.theta = shape.dim // shape.num_heads, theta
        kv_dim = self.num_kv_heads * self.head_dim
        self.q = nn.Linear(shape.dim, shape.dim, bias=False)
        self.k = nn.Linear(shape.dim, kv_dim, bias=False)
        self.v = nn.Linear(shape.dim, kv_dim, bias=False)
        self.o = nn.Linear(shape.dim, shape.dim, bias=False)

    def rotated(self, x):
        """The halves of a head as real and imaginary parts, turned by position times rate."""
        half = self.head_dim // 2
        rates = self.theta ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * rates
        turn = torch.polar(torch.ones_like(angles), angles)[:, None, :]
        turn = turn.to(torch.complex128 if x.dtype == torch.float64 else torch.complex64)
        turned = torch.complex(x[..., :half], x[..., half:]) * turn
        return torch.cat([turned.real, turned.imag], dim=-1)

    def forward(self, x):
        rows, length, dim = x.shape
        q = self.rotated(self.q(x).reshape(rows, length, self.num_heads, self.head_dim))
        k = self.rotated(self.k(x).reshape(rows, length, self.num_kv_heads, self.head_dim))
        v = self.v(x).reshape(rows, length, self.num_kv_heads, self.head_dim)
        outputs = []
        for head in range(self.num_heads):
            shared = head * self.num_kv_heads // self.num_heads
            scores = q[:, :, head] @ k[:, :, shared].transpose(1, 2) / self.head_dim**0.5
            future = torch.ones(length, length, dtype=torch.bool).triu(1)
            weights = torch.softmax(scores.masked_fill(future, -torch.inf), dim=-1)
            outputs.append(weights @ v[:, :, shared])
        return self.o(torch.stack(outputs, dim=2).reshape(rows, length, dim))


class Block(nn.Module):
    def __init__(self, shape, eps, theta):
        super().__init__()
        self.attention_norm = Norm(shape.dim, eps)
        self.attention = Attention(shape, theta)
        self.mlp_norm = Norm(shape.dim, eps)
        self.gate = nn.Linear(shape.dim, shape.hidden, bias=False)
        self.up = nn.Linear(shape.dim, shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.dim, bias=False)

    def forward(self, x, drop):
        x = x + drop("attention", self.attention(self.attention_norm(x)))
        normed = self.mlp_norm(x)
        gate = self.gate(normed)
        return x + drop("mlp", self.down(gate * torch.sigmoid(gate) * self.up(normed)))

    def named(self, unit):
        attention = self.attention
        return {
            f"{unit}.attn_norm": self.attention_norm.weight,
            f"{unit}.wq": attention.q.weight,
            f"{unit}.wk": attention.k.weight,
            f"{unit}.wv": attention.v.weight,
            f"{unit}.wo": attention.o.weight,
            f"{unit}.mlp_norm": self.mlp_norm.weight,
            f"{unit}.w1": self.gate.weight,
            f"{unit}.w3": self.up.weight,
            f"{unit}.w2": self.down.weight,
        }


class ReferenceLlama(nn.Module):
    """`shape` has dim, num_layers, num_heads, num_kv_heads, hidden, vocab and tied."""

    def __init__(self, shape, state, *, eps=1e-5, theta=10000.0):
        super().__init__()
        self.embedding = nn.Embedding(shape.vocab, shape.dim)
        self.blocks = nn.ModuleList(Block(shape, eps, theta) for _ in range(shape.num_layers))
        self.norm = Norm(shape.dim, eps)
        self.head = nn.Linear(shape.dim, shape.vocab, bias=False)
        if shape.tied:
            self.head.weight = self.embedding.weight
        self.load(state)

    def named(self) -> dict[str, nn.Parameter]:
        """The parameters under the plan's names, each once."""
        named = {"embed.weight": self.embedding.weight}
        for layer, block in enumerate(self.blocks):
            named |= block.named(f"block.{layer}")
        named["head.norm"] = self.norm.weight
        if self.head.weight is not self.embedding.weight:
            named["head.weight"] = self.head.weight
        return named

    def load(self, state: dict[str, Tensor]) -> None:
        named = self.named()
        assert named.keys() == state.keys(), sorted(named.keys() ^ state.keys())
        self.to(next(iter(state.values())).dtype)
        with torch.no_grad():
            for name, parameter in named.items():
                assert parameter.shape == state[name].shape, name
                parameter.copy_(state[name])

    def forward(self, tokens: Tensor, targets: Tensor, mask: Mask | None = None) -> Tensor:
        """The sum of the losses of all targets but those that are -100."""
        x = self.embedding(tokens)
        for layer, block in enumerate(self.blocks):
            unit = f"block.{layer}"

            def drop(site, value, unit=unit):
                return value if mask is None else value * mask(unit, site, tuple(value.shape))

            x = block(x, drop)
        logits = self.head(self.norm(x))
        losses = torch.logsumexp(logits, dim=-1) - torch.gather(
            logits, -1, targets.clamp(min=0)[..., None]
        ).squeeze(-1)
        return losses[targets != -100].sum()
