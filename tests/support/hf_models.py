"""Tiny configurations of many architectures of transformers, and what a plain loop makes of "
"them."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

VOCAB = 48

_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 8,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attention_dropout": 0.0,
}
"""Three key-value heads: cut evenly by 3 workers, unevenly by 2."""

_SAME = {"num_attention_heads": 4, "num_key_value_heads": 4}
"""Where a head is hidden_size / num_attention_heads wide."""

_EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}

MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 4},
    "qwen2": {**_SAME},
    "qwen3": {},
    "gemma": {},
    "gemma2": {"query_pre_attn_scalar": 8, "sliding_window": 4},
    "phi": {**_SAME, "embd_pdrop": 0.0, "resid_pdrop": 0.0},
    "phi3": {**_SAME, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "sliding_window": None},
    "olmo": {**_SAME},
    "olmo2": {**_SAME},
    "granite": {**_SAME, "logits_scaling": 2.0, "residual_multiplier": 0.5},
    "smollm3": {**_SAME},
    "gpt_neox": {**_SAME, "rotary_pct": 0.5, "hidden_dropout": 0.0},
    "gpt2": {
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 64,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "resid_pdrop": 0.0,
    },
    "starcoder2": {**_SAME, "residual_dropout": 0.0, "embedding_dropout": 0.0},
    "cohere": {**_SAME},
    "stablelm": {**_SAME},
    "glm": {**_SAME, "partial_rotary_factor": 0.5},
    "glm4": {**_SAME, "partial_rotary_factor": 0.5},
    "nemotron": {},
    "ernie4_5": {},
    "exaone4": {**_SAME, "sliding_window": 4},
    "arcee": {**_SAME},
    "bloom": {"n_layer": 2, "n_head": 4, "hidden_dropout": 0.0},
    "mixtral": {**_EXPERTS, "sliding_window": None},
    "qwen2_moe": {
        **_EXPERTS,
        **_SAME,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 24,
    },
    "qwen3_moe": {**_EXPERTS, "moe_intermediate_size": 24},
    "olmoe": {**_EXPERTS, **_SAME},
}
"""By model_type: what differs from the sizes above."""

EXPERTS = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe")


def tiny_config(kind: str, **changes: Any) -> Any:
    from transformers import AutoConfig

    sizes = {**_SIZES, **MODELS[kind], **changes}
    if kind in ("gpt2", "bloom"):
        sizes = {k: v for k, v in sizes.items() if not k.startswith("num_") and k != "head_dim"}
    if kind == "phi3":
        sizes["pad_token_id"] = 0
    if sizes.get("num_attention_heads") == 4:
        sizes.pop("head_dim", None)
    return AutoConfig.for_model(kind, **sizes)


def save_tiny(kind: str, folder: Path, seed: int = 0, **changes: Any) -> Any:
    """A model with random weights, written by save_pretrained; float64 in memory."""
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(tiny_config(kind, **changes))
    with torch.no_grad():
        for parameter in model.parameters():
            # Norms and biases start alike: what mixes them up would not show.
            parameter.add_(0.05 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model.double().train()


def plain_loss(model: Any, tokens: Tensor, targets: Tensor) -> Tensor:
    """The sum over all targets, from the logits of the model itself."""
    logits = model(input_ids=tokens, use_cache=False).logits
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), reduction="sum"
    )
