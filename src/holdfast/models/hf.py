"""Models of Hugging Face's transformers: a directory with config.json, or a configuration object.

One adapter for all causal language models (`hf_cut` says how); the modules stay theirs. Tensor
styles are those that ship with the model (`base_model_tp_plan`), cut by key-value head, since the
number of query heads per key-value head must be the same on every worker. Experts run whole inside
their layer.
"""

import importlib
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.engine.boundary import Boundary
from holdfast.engine.tensor_parallel import vocab_cross_entropy
from holdfast.engine.unit_module import Call
from holdfast.errors import HoldfastError, InternalError, UserCodeError
from holdfast.models.foreign import (
    Body,
    ForeignModel,
    InitialValues,
    OwnValues,
    UnitPart,
    logits_module,
)
from holdfast.models.hf_cut import (
    LayerArguments,
    ModelCut,
    Stub,
    call_model,
    capture_hidden,
    find_cut,
    positions_in,
)
from holdfast.models.hf_direct import find_direct
from holdfast.models.styles import Style, mark
from holdfast.models.tracing import shapes_only
from holdfast.models.weights import Weights, weight_files

SUPPORTED = {"colwise": "column", "rowwise": "row", "sequence_parallel": "replicated"}
"""Their styles that are ours; what is not here is refused by name, for tensor degrees above 1."""

WHOLE = re.compile(r"(^|\.)(experts|gate|router)(\.|$)")
"""Modules that run whole, whatever the plan says: experts and what chooses them."""


def transformers() -> Any:
    try:
        return importlib.import_module("transformers")
    except ImportError:
        raise HoldfastError(
            "models of Hugging Face need transformers: pip install 'holdfast[hf]'"
        ) from None


def read_hf_config(folder: Path) -> Any:
    if not (folder / "config.json").is_file():
        raise HoldfastError(f"model.hf = {str(folder)!r} has no config.json")
    try:
        return transformers().AutoConfig.from_pretrained(folder, local_files_only=True)
    except (ValueError, OSError, KeyError) as error:
        line = str(error).split("\n", 1)[0]
        raise HoldfastError(f"{folder / 'config.json'}: {line}") from None


def hf_model(folder: Path, seed: int) -> ForeignModel:
    """The model of a directory, with the weights that lie there, or new ones if there are none."""
    return model_of_config(read_hf_config(folder), seed, folder if weight_files(folder) else None)


def model_of_config(config: Any, seed: int, weights: Path | None = None) -> ForeignModel:
    text = config.get_text_config()
    _check_config(config, text)
    build = partial(_build, config)
    cut = find_cut(build, text.num_hidden_layers)
    listed = _parts_of(cut)
    names = {name for part in listed for name in part.names.values()}

    def values() -> InitialValues:
        if weights is None:
            return OwnValues(lambda: _whole_parts(build(), listed), seed)
        return open_weights(cut.model, weights, names)

    if weights is not None:
        _check_weights(cut.model, weights, listed)
    return ForeignModel(
        listed,
        values,
        text.vocab_size,
        keeps_buffer_dtype=True,
        origin=config,
        modules=("transformers.models.auto.modeling_auto", type(cut.model).__module__),
    )


def _build(config: Any) -> Any:
    model = transformers().AutoModelForCausalLM.from_config(config)
    model.train()
    return model


def _check_config(config: Any, text: Any) -> None:
    known = transformers().models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING
    if type(config) not in known:
        raise HoldfastError(
            f"{config.model_type} is no causal language model of transformers "
            f"{transformers().__version__}: those have {len(known)} kinds of configurations"
        )
    if getattr(config, "is_encoder_decoder", False):
        raise HoldfastError(f"{config.model_type} has an encoder; only decoders can be cut here")
    if getattr(text, "output_router_logits", False):
        raise HoldfastError(
            f"{config.model_type}: output_router_logits = True adds a loss over the routers of all "
            f"layers together, which cannot be cut; set it to False in config.json"
        )
    if getattr(config, "quantization_config", None) is not None:
        raise HoldfastError(f"{config.model_type} is quantised; train the weights it was made from")


# Units.


class HFEmbed(Body):
    """tokens -> hidden: the model's own forward, up to its first layer."""

    def __init__(self, cut: ModelCut) -> None:
        super().__init__()
        self.trunk, _ = cut.trunk(torch.float32, keep=cut.before)
        self._direct = cut.embed_modules

    def forward(self, tokens: Tensor, call: Call) -> Tensor:
        if self._direct:
            return _in_a_row(self.trunk, self._direct, tokens)
        positions = None
        if call.documents is not None:
            positions = positions_in(call.documents, tokens.device)
        stubs = _stubs_in(self.trunk)
        return capture_hidden(self.trunk, stubs, tokens, positions)


class HFLayer(Body):
    """hidden -> hidden: the layer itself."""

    def __init__(self, cut: ModelCut, number: int, arguments: LayerArguments) -> None:
        super().__init__()
        self.layer, self._number, self._arguments = cut.layers[number], number, arguments

    def prepare(self, x: Any, call: Call) -> None:
        self._arguments.of(self._number, x, call.documents)

    def forward(self, hidden: Tensor, call: Call) -> Tensor:
        args, kwargs = self._arguments.of(self._number, hidden, call.documents)
        result = self.layer(hidden, *args, **kwargs)
        found: Tensor = result[0] if isinstance(result, tuple) else result
        return found


class HFHead(Body):
    """hidden -> the sum of the losses: the model's own forward, after its last layer."""

    def __init__(self, cut: ModelCut) -> None:
        super().__init__()
        self.trunk, _ = cut.trunk(torch.float32, keep=cut.after)
        self.needs_tokens, self._direct = cut.needs_tokens, cut.head_modules
        self.logits = logits_module(self)

    def forward(self, hidden: Boundary, call: Call) -> Tensor:
        if call.targets is None:
            raise InternalError("the head computes the loss, the call brings no targets")
        logits = self.compute_logits(hidden)
        return vocab_cross_entropy(logits, call.targets, self.first_column, call.group)

    def compute_logits(self, hidden: Any) -> Tensor:
        """This worker's columns."""
        if self._direct:
            return _in_a_row(self.trunk, self._direct, hidden)
        last = _stubs_in(self.trunk)[-1]
        last.on_call = lambda _, arguments: hidden
        # What comes before the layers is computed for nothing, so for one token where that will do.
        shape = hidden.shape[:2] if self.needs_tokens else (1, 1)
        tokens = torch.zeros(shape, dtype=torch.int64, device=hidden.device)
        try:
            found: Tensor = call_model(self.trunk, tokens).logits
        finally:
            last.on_call = _pass_on
        return found


def _in_a_row(trunk: nn.Module, paths: Sequence[str], x: Tensor) -> Tensor:
    for path in paths:
        x = trunk.get_submodule(path)(x)
    return x


def _pass_on(hidden: Tensor, arguments: Any) -> Tensor:
    return hidden


def _stubs_in(trunk: nn.Module) -> list[Stub]:
    return [module for module in trunk.modules() if isinstance(module, Stub)]


def _parts_of(cut: ModelCut) -> list[UnitPart]:
    whole = _mark_styles(cut)
    names = _names(cut.model)
    arguments = LayerArguments(cut)
    with shapes_only():
        _check_arguments(cut, LayerArguments(cut))
        cut.needs_tokens = _needs_tokens(cut)
        cut.embed_modules, cut.head_modules = find_direct(cut)
    listed = [_part("embed", HFEmbed(cut), "trunk.", names, whole)]
    for number in range(len(cut.layers)):
        path = f"{cut.layers_path}.{number}"
        body = HFLayer(cut, number, arguments)
        listed.append(_part(path, body, "layer.", names, whole, prefix=f"{path}."))
    listed.append(_part("head", HFHead(cut), "trunk.", names, whole))
    return listed


def _names(model: Any) -> dict[str, str]:
    """Every path of a parameter -> its name: the first path of those that are tied."""
    seen: dict[int, str] = {}
    return {
        path: seen.setdefault(id(parameter), path)
        for path, parameter in model.named_parameters(remove_duplicate=False)
    }


def _part(
    name: str, body: Body, inner: str, names: dict[str, str], whole: str, prefix: str = ""
) -> UnitPart:
    paths = [path for path, _ in body.named_parameters(remove_duplicate=False)]
    found = {path: names[prefix + path.removeprefix(inner)] for path in paths}
    return UnitPart(name, body, found, whole)


def _whole_parts(model: Any, listed: Sequence[UnitPart]) -> list[UnitPart]:
    """A model with values, as one part, under the names of the units."""

    class Whole(Body):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

    wanted = {name for part in listed for name in part.names.values()}
    names = {f"model.{path}": name for path, name in _names(model).items() if name in wanted}
    return [UnitPart("whole", Whole(), names)]


# What is found out.


def _needs_tokens(cut: ModelCut) -> bool:
    """Does the head give another shape when it sees one token instead of all?"""
    head = HFHead(cut).to_empty(device="cpu")
    hidden = torch.zeros((2, 6, cut.model.config.get_text_config().hidden_size))
    try:
        return head.compute_logits(hidden).shape[:2] != (2, 6)
    except (RuntimeError, ValueError, IndexError):
        return True


def _check_arguments(cut: ModelCut, arguments: LayerArguments) -> None:
    """Tensors among the arguments must not depend on the hidden state."""
    width = cut.model.config.get_text_config().hidden_size
    name = type(cut.model).__name__
    probe = torch.zeros((2, 6, width))
    try:
        found = arguments.record(probe, None)
    except Exception as error:
        raise UserCodeError(f"{name} cannot be run on shapes alone: {error}") from error
    for number, (args, kwargs) in enumerate(found):
        for value in (*args, *kwargs.values()):
            if isinstance(value, Tensor) and value.requires_grad:
                raise HoldfastError(
                    f"{name}: layer {number} gets more than the hidden state from what was "
                    f"computed "
                    f"before it, so the model cannot be cut there"
                )


def _mark_styles(cut: ModelCut) -> str:
    """Put our styles on the modules; why the model runs with tensor 1 only, empty if it does "
    "not."""
    model, config = cut.model, cut.model.config.get_text_config()
    plan = getattr(config, "base_model_tp_plan", None)
    kind = config.model_type
    if not plan:
        return f"{kind} ships no tensor plan (base_model_tp_plan)"
    base = cut.layers_path.rpartition(".")[0]
    for pattern, style in plan.items():
        if WHOLE.search(pattern):
            continue
        matcher = re.compile(re.escape(f"{base}.{pattern}").replace(r"\*", r"\d+"))
        found = [path for path, _ in model.named_modules() if matcher.fullmatch(path)]
        if style not in SUPPORTED:
            return f"the tensor plan of {kind} cuts {pattern} by {style!r}, which is not supported"
        for path in found:
            parent = model.get_submodule(path.rpartition(".")[0])
            module = model.get_submodule(path)
            if SUPPORTED[style] != "replicated":
                mark(module, Style(SUPPORTED[style], _head_parts(parent, config)))  # type: ignore[arg-type]
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    for module in (embedding, head):
        if isinstance(module, nn.Embedding | nn.Linear):
            mark(module, Style("vocabulary"))
    return ""


def _head_parts(parent: nn.Module, config: Any) -> int:
    """Attention is cut by key-value head; 0 for anything else."""
    if not hasattr(parent, "head_dim") and not hasattr(parent, "head_size"):
        return 0
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return int(heads)


# Weights.


def open_weights(model: Any, folder: Path, names: set[str]) -> Weights:
    aliases = {path: name for path, name in _names(model).items() if path != name}
    ignored = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
    buffers = [f"^{re.escape(path)}$" for path, _ in model.named_buffers()]
    return Weights(
        folder,
        names,
        prefix=model.base_model_prefix,
        ignored=[*ignored, *buffers],
        aliases=aliases,
    )


def _check_weights(model: Any, folder: Path, listed: Sequence[UnitPart]) -> None:
    names = {name for part in listed for name in part.names.values()}
    weights = open_weights(model, folder, names)
    try:
        for part in listed:
            for path, name in part.names.items():
                weights.check(name, tuple(part.body.get_parameter(path).shape))
    finally:
        weights.close()
