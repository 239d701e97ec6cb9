"""A model of your own under Holdfast: gated convolutions instead of attention.

    python examples/own_model.py     # trains it while workers, nodes and the coordinator fail

Two tensors pass from unit to unit (the hidden state, and how much of each row was seen), the head
uses the weights of the embedding, and there is dropout, which any worker draws alike.
"""

from pathlib import Path

import torch
from torch import Tensor, nn

import holdfast as hf

VOCAB, DIM = 64, 32


class Embed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.drop = nn.Embedding(VOCAB, DIM), nn.Dropout(0.1)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        seen = torch.arange(1, tokens.shape[1] + 1, device=tokens.device).expand_as(tokens)
        return self.drop(self.table(tokens)), seen


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(DIM), nn.Dropout(0.1)
        self.mix, self.out = nn.Conv1d(DIM, 2 * DIM, 3), nn.Linear(DIM, DIM)

    def forward(self, hidden: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        past = nn.functional.pad(self.norm(hidden).transpose(1, 2), (2, 0))
        value, gate = self.mix(past).transpose(1, 2).chunk(2, dim=-1)
        mean = value.cumsum(1) / seen.unsqueeze(-1)
        return hidden + self.drop(self.out(mean * gate.sigmoid())), seen


class Head(nn.Module):
    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.norm, self.weight = nn.LayerNorm(DIM), table.weight

    def forward(self, hidden: Tensor, seen: Tensor) -> Tensor:
        return nn.functional.linear(self.norm(hidden), self.weight)


def build(layers: int = 4) -> object:
    embed = Embed()
    return hf.sequential([embed, *(Block() for _ in range(layers)), Head(embed.table)])


if __name__ == "__main__":
    hf.train(Path(__file__).with_suffix(".toml"), model=build)
