"""What a rank holds, by names that do not depend on the number of ranks."""

import pickle
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.errors import HoldfastError
from holdfast.snapshot.loop.state import REST, LoopState, unpack_rest


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    return model, torch.optim.AdamW(model.parameters())


class Words:
    def __init__(self, words: Any) -> None:
        self.words = words

    def state_dict(self) -> dict:
        return {"words": self.words}

    def load_state_dict(self, state_dict: dict) -> None:
        self.words = state_dict["words"]


def test_what_belongs_to_a_rank_has_its_number():
    model, optimizer = make()
    state = LoopState({"model": model, "optimizer": optimizer}, rank=3)
    state.prime()
    held = {one.spec.name: one for one in state.gather()}
    assert held["rank3.model.0.weight"].spec.box == ((0, 2), (0, 3))
    assert held["rank3.model.0.weight"].is_steady
    assert held["rank3.optimizer.state.0.exp_avg"].is_steady
    assert not held["rank3.model.1.running_mean"].is_steady, "a forward changes it"
    assert held["rank3.optimizer.state.0.step"].spec.shape == ()
    assert list(held)[-1] == f"rank3.{REST}"
    assert all(one.is_own for one in held.values())


def test_the_rest_goes_round():
    state = LoopState({"words": Words({"a": [1, 2], "t": torch.arange(3)})}, rank=0)
    held = state.gather()
    rest = unpack_rest(held[-1].local)
    target = Words(None)
    other = LoopState({"words": target}, rank=0)
    assert [mark.path for mark in other.saved_tensors(rest)] == ["words/words/t"]
    other.apply(rest, {"words/words/t": torch.arange(3)})
    assert target.words["a"] == [1, 2]
    assert target.words["t"].tolist() == [0, 1, 2]


def test_an_object_of_which_nothing_was_saved_is_named():
    rest = unpack_rest(LoopState({"words": Words(1)}, rank=0).gather()[-1].local)
    with pytest.raises(HoldfastError, match="nothing was saved of 'other', only of words"):
        LoopState({"other": Words(1)}, rank=0).apply(rest, {})


def test_the_rest_may_grow_as_far_as_there_is_room():
    words = Words("")
    state = LoopState({"words": words}, rank=0)
    state.rest_bytes = state.gather()[-1].local.numel()
    words.words = "x" * 50_000
    assert state.gather()[-1].local.numel() == state.rest_bytes
    words.words = "x" * 200_000
    with pytest.raises(HoldfastError, match="set aside at the start"):
        state.gather()


def test_lengths_that_differ_a_little_have_one_layout():
    sizes = {LoopState({"w": Words(n)}, 0).gather()[-1].local.numel() for n in (1, 10**9)}
    assert len(sizes) == 1
    assert len(pickle.dumps(10**9)) > len(pickle.dumps(1))


def test_an_optimizer_gets_its_state_and_loses_it_again():
    model, optimizer = make()
    before = [p.clone() for p in model.parameters()]
    state = LoopState({"model": model, "optimizer": optimizer}, rank=0)
    state.prime()
    assert len(optimizer.state) == len(before)
    state.unprime()
    assert not optimizer.state


class Counting(nn.Linear):
    """Its state dict is made so many times; `extra`: of it, what is no parameter or buffer."""

    def __init__(self, extra: Any = None) -> None:
        super().__init__(2, 2)
        self.extra, self.num_made = extra, 0

    def state_dict(self, *args: Any, **options: Any) -> Any:
        self.num_made += 1
        found = super().state_dict(*args, **options)
        return found if self.extra is None else {**found, "extra": self.extra()}


def test_a_modules_state_dict_is_made_once_and_again_when_its_tensors_moved():
    model = Counting()
    state = LoopState({"model": model}, rank=0)
    first, again = state.gather(), state.gather()
    assert model.num_made == 1
    assert [one.local.data_ptr() for one in first[:-1]] == [
        one.local.data_ptr() for one in again[:-1]
    ]
    model.weight = nn.Parameter(torch.full((2, 2), 7.0))
    moved = {one.spec.name: one.local for one in state.gather()}
    assert model.num_made == 2
    assert moved["rank0.model.weight"].tolist() == [[7.0, 7.0], [7.0, 7.0]]


@pytest.mark.parametrize("extra", [lambda: 3, lambda: torch.ones(2)])
def test_a_module_with_more_than_its_tensors_is_asked_every_time(extra):
    model = Counting(extra)
    state = LoopState({"model": model}, rank=0)
    state.gather()
    state.gather()
    assert model.num_made == 2
