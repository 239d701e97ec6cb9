"""[model] and [precision] of a job file: what is trained, in which number formats."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from holdfast.errors import HoldfastError
from holdfast.models.presets import LlamaOptions, RopeScaling, preset_options
from holdfast.plan.model_catalog import LlamaShape, llama_shape
from holdfast.runtime.config.section_types import Degree, Fraction, Section, Size, default_of


class ModelSection(Section, frozen=True, kw_only=True):
    preset: str = "llama-tiny"
    """A Llama: llama-tiny, or the sizes of a published model up to llama-70b."""
    dim: Size | None = None
    """The width of the model; like the sizes below, empty = the preset's."""
    num_layers: Annotated[int, Meta(ge=1, le=4096)] | None = None
    """Blocks of attention and feed-forward."""
    num_heads: Degree | None = None
    """Heads of attention."""
    num_kv_heads: Degree | None = None
    """Heads of keys and values, which heads of attention share."""
    hidden: Size | None = None
    """The width of the feed-forward part."""
    vocab: Size | None = None
    """How many tokens there are."""
    tied: bool | None = None
    """The head uses the embedding's weights."""
    hidden_parts: Size | None = None
    """Into how many parts the feed-forward width may be cut."""
    vocab_parts: Size | None = None
    """Into how many parts embedding and head may be cut."""
    dropout: Fraction = default_of(LlamaOptions, "dropout")
    """0 = none."""
    rope_theta: Annotated[float, Meta(ge=1, le=1e12)] | None = None
    """The base of rotary positions."""
    rope_factor: Annotated[float, Meta(ge=1, le=1e6)] | None = None
    """Of Llama 3's scaling of rotary positions; 1 = none."""
    norm_eps: Annotated[float, Meta(gt=0, lt=1)] | None = None
    """What keeps a norm from dividing by 0."""
    factory: str = ""
    """Instead of a preset: the import path of a function that makes the model, like
    `my_project.model:build` or `model.py:build`.
    """
    arguments: dict[str, Any] = {}
    """What the factory is called with."""
    hf: str = ""
    """Instead of a preset: a directory of Hugging Face, with config.json and perhaps weights."""

    def __post_init__(self) -> None:
        foreign = [name for name in ("factory", "hf") if getattr(self, name)]
        sizes = [name for name in ("preset", *_LLAMA_KEYS) if self._is_given(name)]
        if len(foreign) > 1 or (foreign and sizes):
            one, other = [*foreign, *sizes][:2]
            raise HoldfastError(
                f"{one} = {getattr(self, one)!r} and {other} = {getattr(self, other)!r} contradict "
                f"each other: leave one out"
            )
        if self.arguments and not self.factory:
            raise HoldfastError(
                f"arguments = {self.arguments} are for a factory, and there is none"
            )

    def _is_given(self, name: str) -> bool:
        return bool(getattr(self, name) != default_of(type(self), name))

    @property
    def is_foreign(self) -> bool:
        """Made of modules that are not ours."""
        return bool(self.factory or self.hf)

    @property
    def title(self) -> str:
        return self.factory or self.hf or self.preset

    def shape(self) -> LlamaShape:
        """The preset, with the sizes that are given instead of its own."""
        sizes = {name: getattr(self, name) for name in LlamaShape.__struct_fields__}
        given = {name: size for name, size in sizes.items() if size is not None}
        return msgspec.structs.replace(llama_shape(self.preset), **given)

    def options(self) -> LlamaOptions:
        """The preset's, with those that are given instead of its own."""
        given = {
            name: value
            for name in ("dropout", "rope_theta", "norm_eps")
            if (value := getattr(self, name)) is not None
        }
        found = msgspec.structs.replace(preset_options(self.preset), **given)
        if self.rope_factor is None:
            return found
        scaling = found.rope_scaling or RopeScaling(factor=1.0)
        scaled = msgspec.structs.replace(scaling, factor=self.rope_factor)
        return msgspec.structs.replace(found, rope_scaling=scaled if self.rope_factor > 1 else None)


_LLAMA_KEYS = (*LlamaShape.__struct_fields__, "dropout", "rope_theta", "rope_factor", "norm_eps")


class PrecisionSection(Section, frozen=True, kw_only=True):
    compute: Literal["", "float32", "bfloat16"] = ""
    """What units compute with; empty = job.dtype. Otherwise parameters, gradients and moments stay
    in job.dtype, and units compute with a copy.
    """
    reduce: Literal["", "float32", "bfloat16"] = ""
    """What gradients are summed in between workers; empty = job.dtype. On a worker they are summed
    in job.dtype.
    """
    moments: Literal["", "float32", "bfloat16"] = ""
    """What the optimizer's state is kept in; empty = job.dtype. It is updated in job.dtype."""
