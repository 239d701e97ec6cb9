"""What a Llama computes beyond its sizes, apart from torch; with the values of published models.

The sizes of the presets are in `plan/model_catalog.py`. Both are those of the config.json of the
model that is named beside each, and a test compares them. Presets without a published model behind
them (llama-tiny, llama-small) have the defaults.
"""

import msgspec


class RopeScaling(msgspec.Struct, frozen=True, kw_only=True):
    """Llama 3's stretching of slow rotations, so that positions beyond the original length work."""

    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_length: int = 8192


class LlamaOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What does not change the size of anything."""

    dropout: float = 0.0
    """Probability that an element added to the hidden state is set to zero."""
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    norm_eps: float = 1e-5


_LLAMA_1 = LlamaOptions(norm_eps=1e-6)
_LLAMA_2 = LlamaOptions()
_LLAMA_3_2 = LlamaOptions(rope_theta=500_000.0, rope_scaling=RopeScaling(factor=32.0))

PUBLISHED = {
    "llama-160m": _LLAMA_1,  # JackFram/llama-160m
    "llama-1b": _LLAMA_3_2,  # meta-llama/Llama-3.2-1B
    "llama-3b": _LLAMA_3_2,  # meta-llama/Llama-3.2-3B
    "llama-7b": _LLAMA_2,  # meta-llama/Llama-2-7b-hf
    "llama-13b": _LLAMA_2,  # meta-llama/Llama-2-13b-hf
    "llama-30b": _LLAMA_1,  # huggyllama/llama-30b
    "llama-70b": _LLAMA_2,  # meta-llama/Llama-2-70b-hf
}


def preset_options(name: str) -> LlamaOptions:
    return PUBLISHED.get(name, LlamaOptions())
