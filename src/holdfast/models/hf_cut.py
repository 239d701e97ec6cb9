"""Any causal language model of transformers, cut into units with their own code.

The decoder's layers are the one `ModuleList` with as many entries as the configuration has hidden
layers. They are replaced by stubs, and the model's own forward does the rest:

    embed    runs until the first stub is called: what it receives is the hidden state
    layer i  the real layer, with the arguments that stub i receives besides the hidden state
             (rotary tables, masks): without padding they follow from the shape of the tokens
             alone, so every worker makes them for itself, and keeps them per shape
    head     runs with a last stub that returns the hidden state that is given

An embedding or a head that is nothing but modules in a row is called as such (`hf_direct`).
Sub-modules that only one of the three uses are nothing but a shape in the others. What does not
work this way (layers that see more of each other than the hidden state, arguments made from
values) is refused by name.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._pytree import tree_map

from holdfast.engine.data import Documents
from holdfast.errors import HoldfastError, UserCodeError
from holdfast.models.foreign import without_memory
from holdfast.models.tracing import DATA_DEPENDENT, deep_copy, shapes_only, zeros_for

MAX_SHAPES = 16
"""Whose arguments are kept."""

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class _Captured(Exception):
    """The hidden state that the first layer would have got."""

    def __init__(self, hidden: Tensor) -> None:
        self.hidden = hidden


class Stub(nn.Module):
    """In the place of a layer: gives `on_call` what the layer would have got, and returns what that
    does, in the form in which the layer would.
    """

    def __init__(self, layer: nn.Module, returns_tuple: bool) -> None:
        super().__init__()
        # Not a sub-module: its parameters are those of another unit.
        self.__dict__["layer"] = layer
        self.returns_tuple = returns_tuple
        self.on_call: Callable[[Tensor, Arguments], Tensor] = lambda hidden, _: hidden

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["layer"], name)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Stub":
        return Stub(self.__dict__["layer"], self.returns_tuple)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        hidden, rest, named = split_arguments(args, kwargs)
        result = self.on_call(hidden, (rest, named))
        return (result,) if self.returns_tuple else result


def split_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, tuple[Any, ...], dict[str, Any]]:
    """The hidden state, and the rest."""
    if args:
        return args[0], args[1:], kwargs
    return kwargs["hidden_states"], (), {k: v for k, v in kwargs.items() if k != "hidden_states"}


class ShapeOnly(nn.Module):
    """In the place of a module whose parameters are those of another unit: a result of the right
    shape, all zeros.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.width = 0
        if isinstance(module, nn.Embedding):
            self.width, self.is_table = module.embedding_dim, True
        elif isinstance(module, nn.Linear):
            self.width, self.is_table = module.out_features, False
        self.dtype = dtype

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not self.width:
            return x
        lead = x.shape if self.is_table else x.shape[:-1]
        return torch.zeros((), dtype=self.dtype, device=x.device).expand(*lead, self.width)


@dataclass
class ModelCut:
    """A model of transformers without memory for its parameters, and where it is cut."""

    model: Any
    layers_path: str
    before: frozenset[str]
    """Paths of modules with parameters of their own that the embedding uses."""
    after: frozenset[str]
    returns_tuple: tuple[bool, ...]
    needs_tokens: bool = False
    """The head looks at the shape of the tokens, not only at the hidden state."""
    embed_modules: tuple[str, ...] = ()
    """Paths of the modules that are all of the embedding (`hf_direct`); empty: there is more."""
    head_modules: tuple[str, ...] = ()

    @property
    def layers(self) -> nn.ModuleList:
        found: nn.ModuleList = self.model.get_submodule(self.layers_path)
        return found

    def trunk(self, dtype: torch.dtype, *, keep: frozenset[str]) -> tuple[Any, list[Stub]]:
        """The model with stubs for layers; of the other modules, those in `keep` are whole."""
        layers = list(self.layers)
        stubs = [Stub(*pair) for pair in zip(layers, self.returns_tuple, strict=True)]
        # Layers are not copied: the stubs stand for them.
        trunk = deep_copy(self.model, {id(self.layers): nn.ModuleList(stubs)})
        for path in sorted((self.before | self.after) - keep):
            parent, _, key = path.rpartition(".")
            setattr(
                trunk.get_submodule(parent), key, ShapeOnly(self.model.get_submodule(path), dtype)
            )
        return trunk, stubs


def capture_hidden(trunk: Any, stubs: list[Stub], tokens: Tensor, positions: Any) -> Tensor:
    """What the first layer gets."""

    def stop(hidden: Tensor, arguments: Arguments) -> Tensor:
        raise _Captured(hidden)

    stubs[0].on_call = stop
    try:
        call_model(trunk, tokens, positions)
    except _Captured as found:
        return found.hidden
    raise HoldfastError(f"{type(trunk).__name__} never calls its first layer")


def call_model(trunk: Any, tokens: Tensor, positions: Tensor | None = None) -> Any:
    given = {} if positions is None else {"position_ids": positions}
    return trunk(input_ids=tokens, use_cache=False, **given)


class LayerArguments:
    """What layers get besides the hidden state, by the shape of the tokens; shared by all layers of
    a worker.
    """

    def __init__(self, cut: ModelCut) -> None:
        self._cut = cut
        self._trunks: dict[Any, tuple[Any, list[Stub]]] = {}
        self._kept: OrderedDict[Any, list[Arguments]] = OrderedDict()

    def __deepcopy__(self, memo: dict[int, Any]) -> "LayerArguments":
        return self

    def of(self, layer: int, hidden: Tensor, documents: Documents | None) -> Arguments:
        key = (hidden.shape[:2], *_kind(hidden), documents)
        if key not in self._kept:
            positions = None if documents is None else positions_in(documents, hidden.device)
            with torch.no_grad():
                self._kept[key] = self.record(hidden, positions)
            if len(self._kept) > MAX_SHAPES:
                self._kept.popitem(last=False)
        return self._kept[key][layer]

    def record(self, hidden: Tensor, positions: Tensor | None) -> list[Arguments]:
        """What every stub gets in a forward pass in which nothing but shapes is computed."""
        where = _kind(hidden)
        if where not in self._trunks:
            trunk, stubs = self._cut.trunk(hidden.dtype, keep=frozenset())
            self._trunks[where] = (trunk.to(hidden.device), stubs)
        trunk, stubs = self._trunks[where]
        found: list[Arguments] = []

        def note(x: Tensor, arguments: Arguments) -> Tensor:
            found.append(arguments)
            return x

        for stub in stubs:
            stub.on_call = note
        tokens = torch.zeros(hidden.shape[:2], dtype=torch.int64, device=hidden.device)
        call_model(trunk, tokens, positions)
        return found


def _kind(tensor: Tensor) -> tuple[object, ...]:
    """Tensors of shapes alone are never mixed with real ones."""
    return (type(tensor), tensor.dtype, str(tensor.device))


def positions_in(documents: Documents, device: torch.device) -> Tensor:
    """[B, T]: of every token in its document; the model sees from them where documents end."""
    rows = [torch.cat([torch.arange(length) for length in row]) for row in documents]
    return torch.stack(rows).to(device)


def find_cut(build: Callable[[], Any], num_layers: int) -> ModelCut:
    """Build the model without memory and find out how it can be cut."""
    with without_memory():
        model = build()
    name = type(model).__name__
    lists = [
        path
        for path, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == num_layers
    ]
    outer = [
        path for path in lists if not any(path.startswith(f"{p}.") for p in lists if p != path)
    ]
    if len(outer) != 1:
        raise HoldfastError(
            f"{name}: {len(outer)} lists of {num_layers} layers were found ({', '.join(outer)}), "
            f"one is "
            f"needed to cut the model into units"
        )
    cut = ModelCut(model, outer[0], frozenset(), frozenset(), (False,) * num_layers)
    try:
        with shapes_only():
            _watch(cut, name)
    except HoldfastError:
        raise
    except Exception as error:
        raise UserCodeError(
            f"{name} cannot be run on shapes alone ({type(error).__name__}: {error}), so where it "
            f"can be cut is not found"
        ) from error
    return cut


def _watch(cut: ModelCut, name: str) -> None:
    """Run the model on shapes alone, with stubs for layers, and note which modules are called
    before and after them, and what layers return.
    """
    trunk, stubs = cut.trunk(torch.float32, keep=frozenset())
    trunk.to_empty(device="cpu")
    calls: list[tuple[str, str]] = []
    handed: list[Tensor] = []
    kinds: dict[type, bool] = {}

    def note_module(path: str) -> Any:
        return lambda module, args, kwargs: calls.append(("module", path))

    def note_layer(number: int) -> Any:
        def note(hidden: Tensor, arguments: Arguments) -> Tensor:
            if number and hidden is not handed[-1]:
                raise HoldfastError(
                    f"{name}: layer {number} gets something else than what layer {number - 1} "
                    f"returns, so the model cannot be cut between them"
                )
            kind = type(cut.layers[number])
            if kind not in kinds:
                kinds[kind] = _returns_tuple(cut.layers[number], hidden, arguments)
            stubs[number].returns_tuple = kinds[kind]
            calls.append(("layer", str(number)))
            handed.append(hidden.clone())
            return handed[-1]

        return note

    owners = set()
    for path, module in trunk.named_modules():
        if any(True for _ in module.parameters(recurse=False)):
            owners.add(path)
            module.register_forward_pre_hook(note_module(path), with_kwargs=True)
    for number, stub in enumerate(stubs):
        stub.on_call = note_layer(number)
    with torch.no_grad():
        call_model(trunk, torch.zeros((2, 6), dtype=torch.int64))
    _take_calls(cut, name, calls, owners)
    cut.returns_tuple = tuple(stub.returns_tuple for stub in stubs)


def _returns_tuple(layer: nn.Module, hidden: Tensor, arguments: Arguments) -> bool:
    """What a layer returns besides the hidden state is not used."""
    args, kwargs = arguments
    try:
        made = deep_copy(layer).to_empty(device="cpu")
        return isinstance(made(hidden, *args, **kwargs), tuple)
    except DATA_DEPENDENT:
        pass
    with unset_fake_temporarily():
        real = deep_copy(layer).to_empty(device="cpu")
        for tensor in (*real.parameters(), *real.buffers()):
            tensor.zero_()
        rest, named = tree_map(zeros_for, (args, kwargs))
        return isinstance(real(zeros_for(hidden), *rest, **named), tuple)


def _take_calls(cut: ModelCut, name: str, calls: list[tuple[str, str]], owners: set[str]) -> None:
    order = [number for kind, number in calls if kind == "layer"]
    if order != [str(number) for number in range(len(order))] or len(order) != len(cut.layers):
        raise HoldfastError(
            f"{name} calls its layers in the order {', '.join(order)}, not one by one"
        )
    first, last = calls.index(("layer", "0")), calls.index(("layer", order[-1]))
    before = {path for kind, path in calls[:first] if kind == "module"}
    after = {path for kind, path in calls[last:] if kind == "module"}
    between = {path for kind, path in calls[first:last] if kind == "module"}
    strange = sorted(between | (before & after) | (owners - before - after))
    if strange:
        raise HoldfastError(
            f"{name}: {strange[0]!r} has parameters that are not used before or after the layers "
            f"alone, so the model cannot be cut into embedding, layers and head"
        )
    cut.before, cut.after = frozenset(before), frozenset(after)
