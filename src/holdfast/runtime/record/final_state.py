"""The state at the end of a run: every worker's slices in a file of its own, and the way back.

`final/<worker>.safetensors` holds parameters under `tensor|lo:hi,lo:hi` (the box of the slice) and
other kinds of state under the same key with the kind behind it, like `|exp_avg`. Reading puts the
whole tensors together again, and refuses what has gaps or contradicts itself.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from holdfast.engine.state import Slice
from holdfast.errors import HoldfastError
from holdfast.observe.run_directory import FINAL, plan_name
from holdfast.plan.holders import HolderMap
from holdfast.plan.plan import Plan
from holdfast.plan.state import PARAMETER
from holdfast.plan.text import parse_plan
from holdfast.plan.units import Box
from holdfast.runtime.record.final_parts import SUFFIX, epoch_folder


def write_final(
    folder: str, worker: str, epoch: int, next_step: int, slices: Mapping[str, Slice]
) -> int:
    """Write what a worker holds below `folder`, all of it or nothing; the size of the file. The run
    directory has to be there: one that is shared may be away for a while.
    """
    tensors = {
        slice_key(name, piece.box, kind): piece.whole(kind).cpu().contiguous()
        for name, piece in slices.items()
        for kind in piece.kinds
    }
    path = epoch_folder(Path(folder), epoch) / f"{worker}{SUFFIX}"
    for made in (Path(folder), path.parent):
        made.mkdir(exist_ok=True)
    partial = path.with_suffix(".part")
    try:
        save_file(tensors, partial, {"epoch": str(epoch), "next_step": str(next_step)})
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:  # others may need the room
        partial.unlink(missing_ok=True)
        raise
    return path.stat().st_size


def slice_key(tensor: str, box: Box, kind: str = PARAMETER) -> str:
    bounds = ",".join(f"{low}:{high}" for low, high in box)
    return f"{tensor}|{bounds}" + ("" if kind == PARAMETER else f"|{kind}")


def parse_key(key: str) -> tuple[str, Box, str]:
    tensor, bounds, *rest = key.split("|")
    pairs = [pair.split(":") for pair in bounds.split(",")] if bounds else []
    return tensor, tuple((int(low), int(high)) for low, high in pairs), (rest or [PARAMETER])[0]


def read_final(run_dir: str | Path, kind: str = PARAMETER) -> dict[str, Tensor]:
    """The whole tensors of a finished run: parameters, or another kind of state, of those tensors
    that have it.
    """
    run_dir = Path(run_dir)
    files = sorted((run_dir / FINAL).glob(f"*{SUFFIX}"))
    if not files:
        raise HoldfastError(f"{run_dir} has no {FINAL}/: run with job.keep_final = true")
    plan = _plan_of(run_dir, files)
    tensors = HolderMap(plan).tensors.values()
    kinds = {spec.name: [one.name for one in spec.kept().kinds] for spec in tensors}
    shapes = {spec.name: spec.shape for spec in tensors if kind in kinds[spec.name]}
    if not shapes:
        names = ", ".join(dict.fromkeys(name for found in kinds.values() for name in found))
        raise HoldfastError(f"state {kind!r} is unknown; known: {names}")
    whole: dict[str, Tensor] = {}
    covered: dict[str, Tensor] = {}
    for path in files:
        for tensor, box, piece in _pieces(path, kind):
            if tensor not in shapes:
                raise HoldfastError(f"{path} holds {tensor}, which the model does not have")
            if tensor not in whole:
                whole[tensor] = torch.zeros(shapes[tensor], dtype=piece.dtype)
                covered[tensor] = torch.zeros(shapes[tensor], dtype=torch.bool)
            index = tuple(slice(low, high) for low, high in box)
            known = covered[tensor][index]
            if not torch.equal(whole[tensor][index][known], piece[known]):
                raise HoldfastError(f"{path} contradicts another worker's {tensor} {box}")
            whole[tensor][index] = piece
            covered[tensor][index] = True
    _check_covered(shapes, covered)
    return whole


def _plan_of(run_dir: Path, files: list[Path]) -> Plan:
    """The last plan; all files must be of it and of one step, and no worker may be missing."""
    versions = {path.name: _version(path) for path in files}
    if len(set(versions.values())) > 1:
        (one, first), *others = versions.items()
        other, second = next((name, version) for name, version in others if version != first)
        raise HoldfastError(
            f"{one} is of epoch {first[0]}, step {first[1]}; {other} of epoch {second[0]}, "
            f"step {second[1]}: they do not belong together"
        )
    epoch = int(next(iter(versions.values()))[0])
    plan = parse_plan((run_dir / plan_name(epoch)).read_text(encoding="utf-8"))
    missing = [worker for worker in plan.workers if f"{worker}{SUFFIX}" not in versions]
    if missing:
        raise HoldfastError(f"{run_dir / FINAL} has no file of {', '.join(missing)}")
    return plan


def _version(path: Path) -> tuple[str, str]:
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
        return about["epoch"], about["next_step"]
    except (SafetensorError, KeyError) as error:
        raise HoldfastError(f"{path} is not a worker's final state: {error}") from None


def _pieces(path: Path, wanted: str) -> Iterator[tuple[str, Box, Tensor]]:
    with safe_open(path, framework="pt") as file:
        for key in file.keys():  # noqa: SIM118 (it is no mapping)
            tensor, box, kind = parse_key(key)
            if kind == wanted:
                yield tensor, box, file.get_tensor(key)


def _check_covered(shapes: Mapping[str, tuple[int, ...]], covered: Mapping[str, Tensor]) -> None:
    for tensor in shapes:
        if tensor not in covered:
            raise HoldfastError(f"no worker wrote {tensor}")
        gaps = int((~covered[tensor]).sum())
        if gaps:
            raise HoldfastError(f"{gaps} of {covered[tensor].numel()} elements of {tensor} missing")
