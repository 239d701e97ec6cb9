"""Boxes of tensors from safetensors files."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from holdfast.errors import HoldfastError
from holdfast.models import hf_export
from holdfast.models.weights import Weights

STATE = {"a": torch.arange(12.0).view(3, 4), "scale": torch.tensor(2.0)}


def test_boxes_are_read_in_the_dtype_that_is_wanted(tmp_path):
    save_file(STATE, tmp_path / "x.safetensors")
    weights = Weights(tmp_path, ["base.a", "base.scale"], prefix="base")
    out, scale = torch.empty(2, 3, dtype=torch.float64), torch.empty(())
    weights.read("base.a", ((1, 3), (0, 3)), out)
    weights.read("base.scale", (), scale)
    assert torch.equal(out, STATE["a"][1:, :3].double())
    assert float(scale) == 2.0
    weights.close()


def test_tied_names_and_patterns(tmp_path):
    save_file(STATE, tmp_path / "x.safetensors")
    Weights(tmp_path, ["b"], aliases={"a": "b"}, ignored=["^scale$"]).close()
    with pytest.raises(HoldfastError, match=r"there are no .safetensors files"):
        Weights(tmp_path / "elsewhere", ["a"])
    (tmp_path / "y.safetensors").write_text("no")
    with pytest.raises(HoldfastError, match=r"y.safetensors is no safetensors file"):
        Weights(tmp_path, ["a", "scale"])


class Config:
    dtype = ""

    def save_pretrained(self, folder):
        (folder / "config.json").write_text(self.dtype)


def test_large_models_are_written_in_several_files(tmp_path, monkeypatch):
    monkeypatch.setattr(hf_export, "MAX_FILE_BYTES", 40)
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    for name in ("config.json", "tokenizer.json", "old.safetensors"):
        (source / name).write_text(name)
    assert hf_export.write_hf(Config(), STATE, source, out) == 52
    files = sorted(path.name for path in out.glob("*.safetensors"))
    assert files == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert load_file(out / files[1]).keys() == {"scale"}
    assert (out / "config.json").read_text() == "float32"
    assert (out / "tokenizer.json").is_file()
    with pytest.raises(HoldfastError, match="exists already"):
        hf_export.write_hf(Config(), STATE, source, out)
