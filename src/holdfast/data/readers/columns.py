"""Tables with a column of documents, by pyarrow: Parquet files, and what `save_to_disk` of Hugging
Face `datasets` writes (a directory with state.json, which names files in Arrow's stream format).
"""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from holdfast.data.readers.reader import Part, Piece, content_of, refuse_field
from holdfast.errors import HoldfastError

STATE = "state.json"
_ROWS = 512
"""Read at a time."""


class ParquetReader:
    """(DocumentReader) A part is a row group."""

    def __init__(self, field: str) -> None:
        self._field = field

    def parts(self, file: Path) -> list[Part]:
        metadata = self._open(file).metadata
        sizes = [metadata.row_group(n).total_byte_size for n in range(metadata.num_row_groups)]
        return [Part(str(file), n, n + 1, size) for n, size in enumerate(sizes)]

    def _open(self, file: Path) -> Any:
        parquet = _pyarrow(file, "parquet")
        try:
            opened = parquet.ParquetFile(file)
        except Exception as error:
            raise HoldfastError(f"{file} is no Parquet file: {error}") from None
        if self._field not in opened.schema_arrow.names:
            refuse_field(file, self._field, opened.schema_arrow.names)
        return opened

    def read(self, part: Part) -> Iterator[Piece]:
        groups = list(range(part.start, part.stop))
        with self._open(Path(part.file)) as opened:
            for batch in opened.iter_batches(_ROWS, groups, columns=[self._field]):
                yield from _pieces(batch.column(0), self._field, part.file)


class ArrowReader:
    """(DocumentReader) A part is a file."""

    def __init__(self, field: str) -> None:
        self._field = field

    def parts(self, file: Path) -> list[Part]:
        size = file.stat().st_size
        return [Part(str(file), 0, 1, size)]

    def read(self, part: Part) -> Iterator[Piece]:
        arrow, ipc = _pyarrow(part.file), _pyarrow(part.file, "ipc")
        try:
            source = arrow.memory_map(part.file)
            opened = ipc.open_stream(source)
        except Exception as error:
            raise HoldfastError(f"{part.file} is no Arrow file: {error}") from None
        with source, opened:
            if self._field not in opened.schema.names:
                refuse_field(part.file, self._field, opened.schema.names)
            for batch in opened:
                column = batch.column(self._field)
                for first in range(0, len(column), _ROWS):
                    yield from _pieces(column.slice(first, _ROWS), self._field, part.file)


def _pieces(column: Any, field: str, file: str) -> Iterator[Piece]:
    for value in column.to_pylist():
        try:
            content = content_of(value, field)
        except HoldfastError as error:
            raise HoldfastError(f"{file}: {error}") from None
        if content is not None:
            yield Piece(content)


def arrow_files(folder: Path) -> list[Path]:
    """Of a data set that was saved by `datasets`."""
    try:
        state = msgspec.json.decode((folder / STATE).read_bytes())
        names = [str(entry["filename"]) for entry in state["_data_files"]]
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise HoldfastError(f"{folder / STATE} is not what datasets writes: {error}") from None
    if state.get("_indices_data_files"):
        raise HoldfastError(
            f"{folder} was saved with a table of indices, by an old version of datasets: load it "
            f"and call flatten_indices() before save_to_disk()"
        )
    return [folder / name for name in names]


def _pyarrow(file: object, module: str = "") -> Any:
    try:
        return importlib.import_module("pyarrow" + (f".{module}" if module else ""))
    except ImportError:
        raise HoldfastError(
            f"{file} needs the package pyarrow: pip install 'holdfast[data]'"
        ) from None
