import pytest
import torch
from safetensors.torch import load_file, save_file

from holdfast.engine.state import Slice
from holdfast.errors import HoldfastError
from holdfast.plan.build import regular_plan
from holdfast.plan.holders import HolderMap
from holdfast.plan.text import format_plan
from holdfast.plan.units import Split, TensorSpec, Unit
from holdfast.runtime.record.final_parts import publish_final
from holdfast.runtime.record.final_state import parse_key, read_final, slice_key, write_final

UNITS = (
    Unit("a", (TensorSpec("a.w", (4, 3), Split(0, 4)), TensorSpec("a.norm", (3,)))),
    Unit("b", (TensorSpec("b.w", (2, 6), Split(1, 6)), TensorSpec("b.scale", ()))),
)
PLAN = regular_plan(UNITS, replicas=2, stages=2, tensor=3)
WHOLE = {
    "a.w": torch.arange(12.0).view(4, 3),
    "a.norm": torch.ones(3),
    "b.w": torch.arange(12.0).view(2, 6) / 7,
    "b.scale": torch.tensor(5.0),
}


@pytest.fixture
def run_dir(tmp_path):
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / "epoch-1.toml").write_text(format_plan(PLAN))
    holders = HolderMap(PLAN)
    for worker in PLAN.workers:
        slices = {}
        for tensor, boxes in holders.slices(worker).items():
            (box,) = boxes
            value = WHOLE[tensor][tuple(slice(low, high) for low, high in box)].clone()
            parameter = torch.nn.Parameter(value)
            slices[tensor] = Slice(
                tensor, box, parameter, {"exp_avg": value * 2, "exp_avg_sq": value * 3}
            )
        assert write_final(str(tmp_path / "final.part"), worker, 1, 9, slices) > 0
    assert publish_final(tmp_path)
    return tmp_path


def edit(path, change):
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, {"epoch": "1", "next_step": "9"})


def test_whole_tensors_come_back(run_dir):
    for kind, factor in (("parameter", 1), ("exp_avg", 2), ("exp_avg_sq", 3)):
        found = read_final(run_dir, kind)
        assert found.keys() == WHOLE.keys()
        for name, tensor in WHOLE.items():
            assert torch.equal(found[name], tensor * factor)
    assert not list(run_dir.rglob("*.part"))


@pytest.mark.parametrize("box", [(), ((0, 4),), ((1, 2), (0, 3))])
@pytest.mark.parametrize("kind", ["parameter", "exp_avg"])
def test_keys_parse_back(box, kind):
    assert parse_key(slice_key("block.0.wq", box, kind)) == ("block.0.wq", box, kind)


def test_a_missing_worker(run_dir):
    (run_dir / "final" / "n0.g5.safetensors").unlink()
    with pytest.raises(HoldfastError, match=r"has no file of n0\.g5"):
        read_final(run_dir)


def test_a_gap(run_dir):
    for worker in ("n0.g0", "n0.g6"):
        path = run_dir / "final" / f"{worker}.safetensors"
        edit(path, lambda tensors: tensors.pop("a.w|0:1,0:3"))
    with pytest.raises(HoldfastError, match=r"3 of 12 elements of a\.w missing"):
        read_final(run_dir)


def test_pieces_that_contradict_each_other(run_dir):
    path = run_dir / "final" / "n0.g6.safetensors"
    edit(path, lambda tensors: tensors["a.norm|0:3"].add_(1))
    with pytest.raises(HoldfastError, match=r"n0\.g6.* contradicts another worker's a\.norm"):
        read_final(run_dir)


def test_a_tensor_the_model_does_not_have(run_dir):
    path = run_dir / "final" / "n0.g6.safetensors"
    edit(path, lambda tensors: tensors.update({"c.w|0:1": torch.ones(1)}))
    with pytest.raises(HoldfastError, match=r"holds c\.w, which the model does not have"):
        read_final(run_dir)


def test_files_of_different_steps_do_not_belong_together(run_dir):
    path = run_dir / "final" / "n0.g6.safetensors"
    save_file(load_file(path), path, {"epoch": "1", "next_step": "8"})
    with pytest.raises(HoldfastError, match=r"step 9; .* step 8: they do not belong together"):
        read_final(run_dir)


def test_what_is_no_final_state(run_dir, tmp_path):
    with pytest.raises(HoldfastError, match="'gradient' is unknown; known: parameter, exp_avg"):
        read_final(run_dir, "gradient")
    (run_dir / "final" / "n0.g6.safetensors").write_bytes(b"nothing")
    with pytest.raises(HoldfastError, match="is not a worker's final state"):
        read_final(run_dir)
    with pytest.raises(HoldfastError, match="keep_final = true"):
        read_final(tmp_path / "elsewhere")
