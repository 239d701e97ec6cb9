"""Persistent checkpoints as a folder of folders: which are valid, which is the newest, which go.

    checkpoints/step-120/            complete: it was renamed from step-120.part as the last act
        .metadata                    DCP's table of contents
        __0_0.distcp ...             the tensors, one file per node that wrote
        holdfast.json                our marker: version, plan, and size and checksum of every file

A folder that plain DCP wrote has no marker; it is valid if its table of contents is there. Nothing
here decides by time, and nothing that is not whole is ever chosen.
"""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import xxhash

from holdfast.errors import HoldfastError
from holdfast.snapshot.layout import Version

CONTENTS = ".metadata"
MARKER = "holdfast.json"
PARTIAL = ".part"
_STEP = re.compile(r"step-(\d+)")
_BLOCK_BYTES = 4 * 2**20
FOREIGN_EPOCH = -1
"""Of checkpoints that are not ours: they count as older than any of ours."""


class FileMark(msgspec.Struct, frozen=True):
    num_bytes: int
    checksum: int


class Marker(msgspec.Struct, frozen=True):
    version: Version
    plan: str
    files: dict[str, FileMark]


class Found(msgspec.Struct, frozen=True):
    """A checkpoint, and what is wrong with it (nothing: it is valid)."""

    path: str
    version: Version
    complaint: str = ""

    @property
    def is_valid(self) -> bool:
        return not self.complaint


def step_folder(root: Path, step: int) -> Path:
    return root / f"step-{step}"


def list_checkpoints(root: Path, *, verify: bool = False) -> list[Found]:
    """All of them, the newest first: a later epoch before an earlier one, whatever its step.
    With `verify`, the bytes of every file are checked.
    """
    folders: dict[int, Path] = {}
    if root.is_dir():
        for path in root.iterdir():
            match = _STEP.fullmatch(path.name)
            if match is not None and path.is_dir():
                folders[int(match[1])] = path
    found = [_judge(folder, step, verify) for step, folder in folders.items()]
    return sorted(found, key=lambda one: (one.version.age, one.path), reverse=True)


def valid_checkpoints(root: Path | None) -> dict[Version, str]:
    """The folders of those whose files are there in full, the newest first; no root: none."""
    found = list_checkpoints(root) if root is not None else []
    return {one.version: one.path for one in found if one.is_valid}


def choose_checkpoint(root: Path, load_step: int = -1, *, verify: bool = True) -> Found:
    """The one of `load_step`, or for -1 the newest valid one. HoldfastError if there is none, with
    what was wrong with those that were passed over.
    """
    if load_step < -1:
        raise HoldfastError(f"load_step {load_step}: a step, or -1 for the newest valid one")
    if load_step >= 0:
        found = _judge(step_folder(root, load_step), load_step, verify)
        if found.is_valid:
            return found
        raise HoldfastError(f"{found.path}: {found.complaint}")
    passed: list[str] = []
    for candidate in list_checkpoints(root):  # the bytes of one after the other, not of all
        found = _judge(Path(candidate.path), _step_of(candidate), verify)
        if found.is_valid:
            return found
        passed.append(f"{found.path}: {found.complaint}")
    raise HoldfastError("; ".join([f"{root} has no valid checkpoint", *passed]))


def _step_of(found: Found) -> int:
    return int(Path(found.path).name.removeprefix("step-"))


def _judge(folder: Path, step: int, verify: bool) -> Found:
    version = Version(step, FOREIGN_EPOCH)
    try:
        marker = read_marker(folder)
        if marker is not None:
            version = marker.version
            _check_marked(folder, step, marker, verify)
        elif not (folder / CONTENTS).is_file():
            raise HoldfastError(f"no {CONTENTS}: it was not finished")
    except (HoldfastError, OSError) as error:
        return Found(str(folder), version, str(error))
    return Found(str(folder), version)


def read_marker(folder: Path) -> Marker | None:
    """None: plain DCP wrote it."""
    try:
        text = (folder / MARKER).read_bytes()
    except FileNotFoundError:
        return None
    try:
        # Earlier checkpoints call the epoch that agreed on the step their lineage.
        return msgspec.json.decode(text.replace(b'"lineage"', b'"agreed_in"'), type=Marker)
    except msgspec.DecodeError as error:
        raise HoldfastError(f"{MARKER} is damaged: {error}") from None


def _check_marked(folder: Path, step: int, marker: Marker, verify: bool) -> None:
    if marker.version.step != step:
        raise HoldfastError(f"the folder is of step {step}, its marker of {marker.version}")
    for name, mark in marker.files.items():
        path = folder / name
        if not path.is_file():
            raise HoldfastError(f"{name} is missing")
        size = path.stat().st_size
        if size != mark.num_bytes:
            raise HoldfastError(f"{name} has {size} bytes, {mark.num_bytes} were written")
        if verify and file_checksum(path) != mark.checksum:
            raise HoldfastError(f"{name} is damaged: its checksum does not fit")


def file_checksum(path: Path) -> int:
    digest = xxhash.xxh3_64()
    with path.open("rb", buffering=0) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.intdigest()


def publish(partial: Path, marker: Marker) -> Path:
    """The last act: marker, everything on the disk, then the name."""
    text = msgspec.json.format(msgspec.json.encode(marker))
    with (partial / MARKER).open("wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(partial)
    final = partial.with_name(partial.name.removesuffix(PARTIAL))
    if final.exists():  # of another epoch, or not whole: what is new replaces it
        shutil.rmtree(final)
    partial.rename(final)
    sync_folder(final.parent)
    return final


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def prune(root: Path, keep_latest_k: int) -> list[str]:
    """Remove all but the newest k valid ones (0: keep all), and what older writes left unfinished.
    What is invalid does not count and is left for a person to look at.
    """
    valid = [found for found in list_checkpoints(root) if found.is_valid]
    removed: list[str] = []
    if valid:
        highest = max(found.version.step for found in valid)
        removed += _remove(_unfinished_before(root, highest))
    if keep_latest_k > 0:
        removed += _remove(Path(found.path) for found in valid[keep_latest_k:])
    return removed


def _unfinished_before(root: Path, step: int) -> Iterator[Path]:
    for path in sorted(root.glob(f"step-*{PARTIAL}")):
        match = _STEP.fullmatch(path.name.removesuffix(PARTIAL))
        if match is not None and int(match[1]) < step:
            yield path


def _remove(folders: Iterator[Path]) -> list[str]:
    """The marker and the contents first: a half removed folder is not valid."""
    removed: list[str] = []
    for folder in folders:
        for name in (CONTENTS, MARKER):
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder)
        removed.append(folder.name)
    return removed
