"""Models known by name, described for planning: their units, tensors, costs and bytes.

Costs are floating-point operations of one micro-batch in units of 10^12 (what one device does in
a second at 1 TFLOP/s); a measured profile replaces them. Activations are 34 bytes per token and
hidden element for a block (16-bit, attention without a stored score matrix), the usual count for
Megatron-style blocks.

Qwen 2.5 models are Llama-like but for biases on queries, keys and values, under 0.01 % of their
parameters, which are left out here; their sizes are those of the published configurations. They
can be planned for and simulated; jobs train Llamas.
"""

import msgspec

from holdfast.errors import HoldfastError
from holdfast.plan.units import Split, TensorSpec, Unit


class LlamaShape(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes that make a Llama-like model: RMSNorm, rotary positions, SwiGLU, grouped-query
    attention.
    """

    dim: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    hidden: int
    vocab: int
    tied: bool = False
    """The head uses the embedding's weights."""
    hidden_parts: int = 0
    """Into how many equal parts the feed-forward width may be cut; 0: one per 64 columns, or
    fewer.
    """
    vocab_parts: int = 0

    @property
    def head_dim(self) -> int:
        return self.dim // self.num_heads


LLAMA = {
    "llama-tiny": LlamaShape(
        dim=64, num_layers=4, num_heads=8, num_kv_heads=4, hidden=192, vocab=256
    ),
    "llama-small": LlamaShape(
        dim=256, num_layers=8, num_heads=8, num_kv_heads=4, hidden=768, vocab=2048
    ),
    "llama-160m": LlamaShape(
        dim=768, num_layers=12, num_heads=12, num_kv_heads=12, hidden=3072, vocab=32000
    ),
    "llama-1b": LlamaShape(
        dim=2048, num_layers=16, num_heads=32, num_kv_heads=8, hidden=8192, vocab=128256, tied=True
    ),
    "llama-3b": LlamaShape(
        dim=3072, num_layers=28, num_heads=24, num_kv_heads=8, hidden=8192, vocab=128256, tied=True
    ),
    "llama-7b": LlamaShape(
        dim=4096, num_layers=32, num_heads=32, num_kv_heads=32, hidden=11008, vocab=32000
    ),
    "llama-13b": LlamaShape(
        dim=5120, num_layers=40, num_heads=40, num_kv_heads=40, hidden=13824, vocab=32000
    ),
    "llama-30b": LlamaShape(
        dim=6656, num_layers=60, num_heads=52, num_kv_heads=52, hidden=17920, vocab=32000
    ),
    "llama-70b": LlamaShape(
        dim=8192, num_layers=80, num_heads=64, num_kv_heads=8, hidden=28672, vocab=32000
    ),
}


QWEN = {
    "qwen-7b": LlamaShape(
        dim=3584, num_layers=28, num_heads=28, num_kv_heads=4, hidden=18944, vocab=152064
    ),
    "qwen-14b": LlamaShape(
        dim=5120, num_layers=48, num_heads=40, num_kv_heads=8, hidden=13824, vocab=152064
    ),
    "qwen-32b": LlamaShape(
        dim=5120, num_layers=64, num_heads=40, num_kv_heads=8, hidden=27648, vocab=152064
    ),
    "qwen-72b": LlamaShape(
        dim=8192, num_layers=80, num_heads=64, num_kv_heads=8, hidden=29568, vocab=152064
    ),
}


def model_shape(name: str) -> LlamaShape:
    """Of any model that can be planned for."""
    known = LLAMA | QWEN
    if name not in known:
        raise HoldfastError(f"model {name!r} is unknown; known: {', '.join(known)}")
    return known[name]


def llama_shape(name: str) -> LlamaShape:
    if name not in LLAMA:
        raise HoldfastError(f"model {name!r} is unknown; known: {', '.join(LLAMA)}")
    return LLAMA[name]


def llama_units(shape: LlamaShape, tokens: int = 4096, element_bytes: int = 2) -> tuple[Unit, ...]:
    """Embedding, blocks, head; `tokens` is the size of one micro-batch, `element_bytes` that of a
    number in the messages between stages.
    """
    _check_shape(shape)
    boundary = element_bytes * tokens * shape.dim
    blocks = [_block(shape, layer, tokens, boundary) for layer in range(shape.num_layers)]
    return (_embed(shape, tokens, boundary), *blocks, _head(shape, tokens))


def _check_shape(shape: LlamaShape) -> None:
    if shape.dim % shape.num_heads:
        raise HoldfastError(f"dim {shape.dim} is not a multiple of {shape.num_heads} heads")
    if shape.num_heads % shape.num_kv_heads:
        raise HoldfastError(
            f"{shape.num_heads} heads are not a multiple of {shape.num_kv_heads} key-value heads"
        )


def _embed(shape: LlamaShape, tokens: int, boundary: int) -> Unit:
    table = TensorSpec("embed.weight", (shape.vocab, shape.dim), Split(0, _vocab_parts(shape)))
    return Unit("embed", (table,), 0.0, 0.0, 0.0, 2 * tokens * shape.dim, boundary)


def _block(shape: LlamaShape, layer: int, tokens: int, boundary: int) -> Unit:
    name, dim = f"block.{layer}", shape.dim
    heads = Split(0, shape.num_heads)
    kv = Split(0, shape.num_kv_heads, shape.num_heads)
    parts = shape.hidden_parts or equal_parts(shape.hidden)
    kv_dim = shape.num_kv_heads * shape.head_dim
    tensors = (
        TensorSpec(f"{name}.attn_norm", (dim,)),
        TensorSpec(f"{name}.wq", (dim, dim), heads),
        TensorSpec(f"{name}.wk", (kv_dim, dim), kv),
        TensorSpec(f"{name}.wv", (kv_dim, dim), kv),
        TensorSpec(f"{name}.wo", (dim, dim), Split(1, shape.num_heads)),
        TensorSpec(f"{name}.mlp_norm", (dim,)),
        TensorSpec(f"{name}.w1", (shape.hidden, dim), Split(0, parts)),
        TensorSpec(f"{name}.w3", (shape.hidden, dim), Split(0, parts)),
        TensorSpec(f"{name}.w2", (dim, shape.hidden), Split(1, parts)),
    )
    weights = sum(tensor.num_elements for tensor in tensors)
    forward = 2 * tokens * weights / 1e12
    return Unit(name, tensors, forward, forward, forward, 34 * tokens * dim, boundary)


def _head(shape: LlamaShape, tokens: int) -> Unit:
    split = Split(0, _vocab_parts(shape))
    owner = "embed.weight" if shape.tied else "head.weight"
    tensors = (
        TensorSpec("head.norm", (shape.dim,)),
        TensorSpec(owner, (shape.vocab, shape.dim), split),
    )
    forward = 2 * tokens * shape.vocab * shape.dim / 1e12
    return Unit("head", tensors, forward, forward, forward, 4 * tokens * shape.vocab, 0)


def _vocab_parts(shape: LlamaShape) -> int:
    return shape.vocab_parts or equal_parts(shape.vocab)


def equal_parts(size: int, wanted: int = 64) -> int:
    """The largest number of equal parts of at least `wanted` each, and no fewer than 16 where
    that divides.
    """
    for width in (wanted, wanted // 2, wanted // 4, wanted // 8, 4, 2, 1):
        if width >= 1 and size % width == 0 and size // width >= 16:
            return size // width
    return size
