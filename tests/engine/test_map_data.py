"""A dataset of the user's own, by number."""

import pytest
import torch

from holdfast.engine.map_data import MapData
from holdfast.errors import HoldfastError


def make(items, seed=3):
    return MapData(items, 4, 2, seed, num_micro_batches=3, vocab=50)


ITEMS = [[n, n + 1, n + 2] for n in range(20)]


def test_every_item_comes_once_before_any_comes_again():
    data = make(ITEMS)
    numbers = [n for step in range(10) for index in range(3) for n in data.items(step, index)]
    for epoch in range(3):
        assert sorted(numbers[20 * epoch : 20 * epoch + 20]) == list(range(20))
    assert numbers[:20] != numbers[20:40], "another order in every epoch"
    assert make(ITEMS).items(7, 2) == data.items(7, 2)
    assert make(ITEMS, seed=4).items(7, 2) != data.items(7, 2)


def test_items_are_cut_and_filled_up():
    tokens, targets = make([list(range(9)), torch.tensor([5, 6])] * 3).micro_batch(0, 0)
    rows = {
        tuple(row): tuple(goal) for row, goal in zip(tokens.tolist(), targets.tolist(), strict=True)
    }
    known = {(0, 1, 2, 3): (1, 2, 3, 4), (5, 0, 0, 0): (6, -100, -100, -100)}
    assert rows.items() <= known.items()


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (7, "the dataset is a int; it needs __len__"),
        (ITEMS[:5], "has 5 items, a step needs 6"),
        ([[1, 50]] * 6, "has tokens from 1 to 50, the model's vocabulary is 0 to 49"),
        ([[1]] * 6, "at least 2 tokens"),
        ([[0.5, 1.0]] * 6, r"is torch.float32 \[2\]"),
    ],
)
def test_what_is_wrong_is_told(items, message):
    with pytest.raises(HoldfastError, match=message):
        make(items).micro_batch(0, 0)
