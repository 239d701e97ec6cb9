"""A directory that `from_pretrained` loads: config.json, weights in safetensors, and what lay
beside the weights that training began with.

It is written under another name and renamed, so there is a whole directory or none.
"""

import copy
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from holdfast.errors import HoldfastError
from holdfast.models.weights import SUFFIX

MAX_FILE_BYTES = 4 << 30
_WEIGHTS = (SUFFIX, ".bin", ".pt", ".pth", ".h5", ".msgpack", ".index.json")
"""Endings of files with weights, which are not kept."""


def write_hf(config: Any, state: Mapping[str, Tensor], source: Path, out: Path) -> int:
    """The bytes of the weights. `source`: where tokenizer files are, if there are any."""
    if out.exists():
        raise HoldfastError(f"{out} exists already; name a directory that does not")
    partial = out.with_name(f"{out.name}.part")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        num_bytes = _write_weights(state, partial)
        own = copy.deepcopy(config)
        own.dtype = str(next(iter(state.values())).dtype).removeprefix("torch.")
        own.save_pretrained(partial)
        _keep_others(source, partial)
        partial.rename(out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return num_bytes


def _write_weights(state: Mapping[str, Tensor], folder: Path) -> int:
    files = _share_out(state)
    places: dict[str, str] = {}
    for number, names in enumerate(files, 1):
        name = f"model{SUFFIX}"
        if len(files) > 1:
            name = f"model-{number:05}-of-{len(files):05}{SUFFIX}"
        # Copies: tensors that share memory cannot be told apart in a file.
        tensors = {key: state[key].detach().cpu().contiguous().clone() for key in names}
        save_file(tensors, folder / name, {"format": "pt"})
        with (folder / name).open("rb") as file:
            os.fsync(file.fileno())
        places.update(dict.fromkeys(names, name))
    num_bytes = sum(tensor.nbytes for tensor in state.values())
    if len(files) > 1:
        index = {"metadata": {"total_size": num_bytes}, "weight_map": places}
        text = json.dumps(index, indent=2, sort_keys=True)
        (folder / f"model{SUFFIX}.index.json").write_text(text, encoding="utf-8")
    return num_bytes


def _share_out(state: Mapping[str, Tensor]) -> list[list[str]]:
    """Names by file, in order, none larger than the limit if it can be helped."""
    files: list[list[str]] = [[]]
    size = 0
    for name, tensor in state.items():
        if files[-1] and size + tensor.nbytes > MAX_FILE_BYTES:
            files.append([])
            size = 0
        files[-1].append(name)
        size += tensor.nbytes
    return files


def _keep_others(source: Path, folder: Path) -> None:
    if not (source / "config.json").is_file():
        return
    for path in sorted(source.iterdir()):
        if path.is_file() and not path.name.endswith(_WEIGHTS) and path.name != "config.json":
            shutil.copy2(path, folder / path.name)
