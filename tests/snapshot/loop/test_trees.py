"""State dicts apart and together again."""

import pickle

import pytest
import torch

from holdfast.snapshot.loop.trees import (
    Mark,
    as_dtype,
    fill,
    flatten,
    is_all_marks,
    local_part,
    marks,
    skeleton,
)

TREE = {
    "weight": torch.arange(6.0).view(2, 3),
    "state": {0: {"step": torch.tensor(3.0), "flags": [True, None]}},
    "pair": (1, torch.tensor([7], dtype=torch.int64)),
    "empty": {},
}


def test_tensors_are_found_by_path() -> None:
    assert [path for path, _ in flatten(TREE, "m")] == ["m/weight", "m/state/0/step", "m/pair/1"]


def test_what_is_taken_apart_is_put_together() -> None:
    bones = pickle.loads(pickle.dumps(skeleton(TREE, "m")))
    again = fill(bones, dict(flatten(TREE, "m")))
    assert again["weight"] is TREE["weight"]
    assert again["pair"] == TREE["pair"]
    assert again["state"][0]["flags"] == [True, None]
    assert again["empty"] == {}


def test_marks_know_what_they_stand_for() -> None:
    assert next(marks(skeleton(TREE, "m"))) == Mark("m/weight", "float32", (2, 3))
    assert as_dtype("int64") is torch.int64


def test_an_unknown_tensor_is_not_passed_over() -> None:
    with pytest.raises(KeyError):
        fill(skeleton(TREE, "m"), {})


def test_the_local_part_is_the_tensor_itself() -> None:
    tensor = torch.zeros(2, requires_grad=True)
    local = local_part(tensor)
    assert local.data_ptr() == tensor.data_ptr()
    assert not local.requires_grad


def test_nothing_but_tensors() -> None:
    assert is_all_marks(skeleton({"a": [torch.zeros(1)], "b": {}}))
    assert not is_all_marks(skeleton({"a": [torch.zeros(1), 3]}))
