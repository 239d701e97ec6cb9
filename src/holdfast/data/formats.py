"""Which format a path is, and which files belong to it."""

import glob
from pathlib import Path
from typing import Literal, get_args

import msgspec

from holdfast.data.megatron import is_megatron
from holdfast.data.readers.columns import STATE, ArrowReader, ParquetReader, arrow_files
from holdfast.data.readers.json_lines import JsonLinesReader
from holdfast.data.readers.reader import DocumentReader
from holdfast.data.readers.text import TextReader
from holdfast.data.store import STORE
from holdfast.data.token_file import MAGIC
from holdfast.errors import HoldfastError

Format = Literal["text", "jsonl", "parquet", "datasets", "megatron", "tokens", "store"]
READY = ("megatron", "tokens", "store")
"""These hold tokens and are read where they are; the others are prepared."""

SUFFIXES: dict[Format, tuple[str, ...]] = {
    "text": (".txt", ".text", ".md"),
    "jsonl": (".jsonl", ".ndjson", ".json"),
    "parquet": (".parquet",),
    "tokens": (".npy", ".bin"),
}
_DICT = "dataset_dict.json"


def detect_format(path: str, dtype: str = "") -> Format:
    """By what is there; refused where that is not clear."""
    found = sorted(set(_possible(path, dtype)))
    if len(found) == 1:
        return found[0]
    known = ", ".join(get_args(Format))
    if not found:
        raise HoldfastError(f"path = {path!r}: its name does not say its format; known: {known}")
    raise HoldfastError(
        f"path = {path!r} may be {' or '.join(found)}: say which with format = {found[0]!r}"
    )


def _possible(path: str, dtype: str) -> list[Format]:
    place = Path(path)
    if place.is_dir():
        return _of_directory(place)
    if not place.is_file() and is_megatron(place):
        return ["megatron"]
    files = matching(path)
    if len(files) == 1 and files[0].suffix in (".bin", ".idx"):
        return _of_binary(files[0], dtype)
    return [kind for file in files for kind in _of_name(file)]


def _of_directory(place: Path) -> list[Format]:
    if (place / STORE).is_file():
        return ["store"]
    if (place / STATE).is_file():
        return ["datasets"]
    if (place / _DICT).is_file():
        splits = msgspec.json.decode((place / _DICT).read_bytes()).get("splits", [])
        raise HoldfastError(
            f"path = '{place}' holds the splits {', '.join(splits)}: name one, like "
            f"'{place / (splits or ['train'])[0]}'"
        )
    return [kind for file in sorted(place.rglob("*")) if file.is_file() for kind in _of_name(file)]


def _of_binary(file: Path, dtype: str) -> list[Format]:
    found: list[Format] = ["megatron"] if is_megatron(file) else []
    if file.suffix == ".bin":
        with file.open("rb") as opened:
            has_header = opened.read(len(MAGIC)) == MAGIC
        if has_header or dtype or not found:
            found.append("tokens")
    return found


def _of_name(file: Path) -> list[Format]:
    suffix = Path(file.stem).suffix if file.suffix == ".gz" else file.suffix
    return [kind for kind, suffixes in SUFFIXES.items() if suffix in suffixes]


def matching(path: str) -> list[Path]:
    """The file of this name, or those that a pattern like `data/*.jsonl` names."""
    place = Path(path)
    if place.exists():
        return [place]
    found = [Path(name) for name in sorted(glob.glob(path, recursive=True))]
    if not found:
        raise HoldfastError(f"path = {path!r}: there is no such file or directory")
    return [file for file in found if file.is_file()]


def input_files(path: str, kind: Format) -> list[Path]:
    """All files of a source that has to be prepared, in their order; none is empty."""
    place = Path(path)
    if kind == "datasets":
        if not (place / STATE).is_file():
            raise HoldfastError(
                f"path = {path!r} is not what datasets' save_to_disk writes: there is no {STATE}"
            )
        files = arrow_files(place)
    elif place.is_dir():
        files = [file for file in sorted(place.rglob("*")) if kind in _of_name(file)]
    else:
        files = matching(path)
    if not files:
        raise HoldfastError(f"path = {path!r} has no file of format {kind!r}")
    for file in files:
        if not file.is_file():
            raise HoldfastError(f"path = {path!r}: there is no file {file}")
        if not file.stat().st_size:
            raise HoldfastError(f"{file} is empty (0 bytes): remove it, or name other files")
    return files


def make_reader(kind: Format, field: str) -> DocumentReader:
    match kind:
        case "text":
            return TextReader()
        case "jsonl":
            return JsonLinesReader(field)
        case "parquet":
            return ParquetReader(field)
        case "datasets":
            return ArrowReader(field)
        case _:
            raise HoldfastError(f"format {kind!r} is not prepared")
