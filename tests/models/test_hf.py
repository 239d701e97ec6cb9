"""Models of transformers, cut into units: a few of them here, all of them in `make chaos`."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM

from holdfast.engine.unit_module import local_box
from holdfast.errors import HoldfastError
from holdfast.models.hf import hf_model, model_of_config
from holdfast.models.hf_cut import find_cut
from holdfast.models.hf_direct import find_direct
from holdfast.models.tracing import shapes_only
from support.hf_jobs import worst_gradient
from support.hf_models import save_tiny, tiny_config

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("kind", "tensor"), [("qwen3", 2), ("mixtral", 1), ("gpt2", 1), ("gemma2", 3)]
)
def test_loss_and_gradients_are_the_models_own(kind, tensor, tmp_path):
    """qwen3: three key-value heads on two workers, and norms of heads that see a share."""
    model = save_tiny(kind, tmp_path)
    loss, gradient = worst_gradient(model, tmp_path, tensor)
    assert loss < 1e-12
    assert gradient < 1e-9


def test_units_are_embedding_layers_and_head(tmp_path):
    save_tiny("llama", tmp_path)
    model = hf_model(tmp_path, 0)
    units = model.units(2, 9, torch.float32)
    assert [unit.name for unit in units] == ["embed", "model.layers.0", "model.layers.1", "head"]
    assert units[1].tensors[0].name == "model.layers.0.self_attn.q_proj.weight"
    assert units[1].forward == units[2].forward > 0
    assert model.modules[1] == "transformers.models.llama.modeling_llama"
    # Three key-value heads: the third worker of three gets the last one.
    assert local_box(units[1].tensors[1], 2, 3) == ((16, 24), (0, 32))


def test_a_model_is_cut_where_its_layers_are():
    cut = find_cut(lambda: AutoModelForCausalLM.from_config(tiny_config("gpt2")), 2)
    assert cut.layers_path == "transformer.h"
    assert cut.before == {"transformer.wte", "transformer.wpe"}
    assert cut.after == {"transformer.ln_f", "lm_head"}
    with pytest.raises(HoldfastError, match="0 lists of 3 layers were found"):
        find_cut(lambda: AutoModelForCausalLM.from_config(tiny_config("gpt2")), 3)


@pytest.mark.parametrize(
    ("kind", "changes", "embed", "head"),
    [
        ("qwen3", {}, ("model.embed_tokens",), ("model.norm", "lm_head")),
        ("gemma", {}, (), ("model.norm", "lm_head")),  # scales what its embedding returns
        ("cohere", {}, ("model.embed_tokens",), ()),  # scales its logits
        ("phi", {"embd_pdrop": 0.1}, (), ("model.final_layernorm", "lm_head")),
    ],
)
def test_modules_in_a_row_are_told_from_more_than_that(kind, changes, embed, head):
    config = tiny_config(kind, **changes)
    cut = find_cut(lambda: AutoModelForCausalLM.from_config(config).train(), 2)
    with shapes_only():
        assert find_direct(cut) == (embed, head)


def test_a_conversion_that_float32_hides_is_more_than_modules():
    class Converting(LlamaForCausalLM):
        def forward(self, *args, **kwargs):
            result = super().forward(*args, **kwargs)
            result.logits = result.logits.float()
            return result

    cut = find_cut(lambda: Converting(tiny_config("llama")).train(), 2)
    with shapes_only():
        assert find_direct(cut) == (("model.embed_tokens",), ())


def test_new_weights_follow_from_the_seed():
    def values(seed):
        model = model_of_config(tiny_config("llama"), seed)
        unit = model.tensors[1][0]
        out = torch.empty(unit.shape)
        model.fill(out, unit.name, unit.whole())
        return out

    assert torch.equal(values(1), values(1))
    assert not torch.equal(values(1), values(2))


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def change_weights(folder, change):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, {"format": "pt"})


def test_what_cannot_be_supported_is_refused_by_name(tmp_path):
    with pytest.raises(HoldfastError, match=r"has no config.json"):
        hf_model(tmp_path, 0)
    save_tiny("mixtral", tmp_path)
    change_config(tmp_path, output_router_logits=True)
    with pytest.raises(HoldfastError, match=r"mixtral: output_router_logits = True"):
        hf_model(tmp_path, 0)
    change_config(tmp_path, model_type="marble")
    with pytest.raises(HoldfastError, match=r"config.json: .*marble"):
        hf_model(tmp_path, 0)
    with pytest.raises(HoldfastError, match="OPTForCausalLM cannot be run on shapes alone"):
        model_of_config(AutoConfig.for_model("opt", num_hidden_layers=2), 0)
    change_config(tmp_path, model_type="t5")
    with pytest.raises(HoldfastError, match="t5 is no causal language model"):
        hf_model(tmp_path, 0)


def test_weights_of_another_model_are_refused(tmp_path):
    save_tiny("llama", tmp_path)
    norm = "model.norm.weight"
    change_weights(tmp_path, lambda tensors: tensors.update(extra=torch.zeros(2)))
    with pytest.raises(HoldfastError, match="has, beyond the model, 'extra'; the model has 21"):
        hf_model(tmp_path, 0)
    change_weights(tmp_path, lambda tensors: (tensors.pop("extra"), tensors.pop(norm)))
    with pytest.raises(HoldfastError, match=r"lacks 'model.norm.weight'; the model has 21 tensors"):
        hf_model(tmp_path, 0)
    change_weights(tmp_path, lambda tensors: tensors.update({norm: torch.zeros(5)}))
    with pytest.raises(HoldfastError, match=r"model.norm.weight is \[5\] there, and \[32\]"):
        hf_model(tmp_path, 0)


@pytest.mark.parametrize(
    ("kind", "message"),
    [("gpt2", "gpt2 ships no tensor plan"), ("phi3", "phi3 cuts .*qkv_proj by 'colwise_rep'")],
)
def test_tensor_is_refused_where_the_model_says_nothing_of_it(kind, message):
    with pytest.raises(HoldfastError, match=message):
        model_of_config(tiny_config(kind), 0).check_tensor(2)
