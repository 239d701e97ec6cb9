"""Chance goes on where it was."""

import random

import numpy as np
import torch

from holdfast.snapshot.loop.random_state import RandomState


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(1))


def test_what_comes_next_is_the_same():
    saved = RandomState().state_dict()
    expected = draw()
    draw()
    RandomState().load_state_dict(saved)
    assert draw() == expected
