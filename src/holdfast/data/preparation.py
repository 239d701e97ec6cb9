"""From text to a token store, once: `prepare` finds the store of a source in the cache or makes it.

A store is named by a key: the content of all input files, the tokenizer, and the field. It is made
in a folder beside its place, part by part. A part that is complete stays, so a preparation that is
broken off goes on where it was. The last act is to rename the folder; so a store is whole or not
there. One process works on a key at a time (a lock that ends with the process), others wait for it.
"""

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.data.fingerprints import Fingerprints
from holdfast.data.formats import Format, input_files, make_reader
from holdfast.data.readers.reader import DocumentReader, Part, Piece
from holdfast.data.store import (
    STORE,
    PartInfo,
    PartWriter,
    StoreInfo,
    join_parts,
    part_info,
    sync_folder,
    write_whole,
)
from holdfast.data.tokenizer import Tokenizer
from holdfast.errors import HoldfastError

_BATCH_CHARACTERS = 4 << 20
_BATCH_PIECES = 4096
_LOOK_AGAIN_S = 0.1


class PrepareProgress(NamedTuple):
    """Of the preparation of one source."""

    name: str
    done_bytes: int
    total_bytes: int
    num_tokens: int
    waits_for: int = 0
    """The process that prepares the same, if another one does."""


OnProgress = Callable[[PrepareProgress], None]


class Inputs(NamedTuple):
    """What is prepared."""

    path: str
    format: Format
    field: str
    tokenizer: Tokenizer | None
    """None: the field holds tokens."""


def default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "holdfast" / "data"


def store_key(inputs: Inputs, cache: Path, *, remember: bool = True) -> str:
    """`remember` what the files hold, so that they are not read again to find out."""
    files = input_files(inputs.path, inputs.format)
    known = Fingerprints(cache)
    contents = [known.of(file) for file in files]
    if remember:
        known.save()
    tokenizer = inputs.tokenizer.digest if inputs.tokenizer is not None else ""
    field = "" if inputs.format == "text" else inputs.field
    kind = "columns" if inputs.format in ("parquet", "datasets") else inputs.format
    text = msgspec.json.encode([1, kind, field, tokenizer, contents])
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def find_store(inputs: Inputs, cache: Path) -> Path | None:
    """The store of a source, if it has been prepared; nothing is written."""
    place = cache / store_key(inputs, cache, remember=False)
    return place if (place / STORE).is_file() else None


def first_piece(inputs: Inputs) -> Piece | None:
    """What a preparation would begin with: most of what is wrong shows here. None: there is none in
    the first part.
    """
    reader = make_reader(inputs.format, inputs.field)
    file = input_files(inputs.path, inputs.format)[0]
    for part in reader.parts(file)[:1]:
        for piece in reader.read(part):
            _check_kind(inputs, piece)
            return piece
    return None


def prepare(inputs: Inputs, cache: Path, on_progress: OnProgress | None = None) -> Path:
    """The store of a source, made if it is not there."""
    tell = on_progress or (lambda progress: None)
    _make_cache(cache)
    place = cache / store_key(inputs, cache)
    if (place / STORE).is_file():
        return place
    with _locked(place.with_name(f"{place.name}.lock"), inputs.path, tell):
        if not (place / STORE).is_file():  # another process may have made it meanwhile
            _make(inputs, place, tell)
    return place


def _check_unchanged(inputs: Inputs, place: Path) -> None:
    if store_key(inputs, place.parent) != place.name:
        raise HoldfastError(
            f"path = {inputs.path!r} was changed while it was prepared: try again when it is "
            f"complete"
        )


def _make_cache(cache: Path) -> None:
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HoldfastError(
            f"data.cache = '{cache}' cannot be made ({error.strerror}): name another folder"
        ) from None
    if not os.access(cache, os.W_OK | os.X_OK):
        raise HoldfastError(f"data.cache = '{cache}' cannot be written to: name another folder")


@contextmanager
def _locked(path: Path, name: str, tell: OnProgress) -> Iterator[None]:
    """Another process may take hours, so there is no deadline; but the lock ends with it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        while not _try_lock(fd):
            tell(PrepareProgress(name, 0, 0, 0, waits_for=int(os.pread(fd, 32, 0).strip() or 0)))
            time.sleep(_LOOK_AGAIN_S)
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _make(inputs: Inputs, place: Path, tell: OnProgress) -> None:
    folder = place.with_name(f"{place.name}.partial")
    folder.mkdir(exist_ok=True)
    reader = make_reader(inputs.format, inputs.field)
    files = input_files(inputs.path, inputs.format)
    parts = [part for file in files for part in reader.parts(file)]
    width = _width(inputs.tokenizer)
    infos = _write_parts(inputs, reader, parts, folder, width, tell)
    if not any(info.num_documents for info in infos):
        shutil.rmtree(folder)
        raise HoldfastError(f"path = {inputs.path!r} has no document with text")
    join_parts(folder, infos, width)
    _check_unchanged(inputs, place)
    info = _describe(inputs, place.name, infos, width)
    write_whole(folder / STORE, msgspec.json.encode(info))
    for path in folder.glob("part-*"):
        path.unlink()
    sync_folder(folder)
    os.replace(folder, place)
    sync_folder(place.parent)
    place.with_name(f"{place.name}.lock").unlink(missing_ok=True)


def _width(tokenizer: Tokenizer | None) -> int:
    return 2 if tokenizer is not None and tokenizer.vocab <= 1 << 16 else 4


def _describe(inputs: Inputs, key: str, infos: Sequence[PartInfo], width: int) -> StoreInfo:
    tokenizer = inputs.tokenizer
    return StoreInfo(
        key=key,
        tokenizer=tokenizer.name if tokenizer is not None else "",
        vocab=tokenizer.vocab if tokenizer is not None else 1 + max(i.highest for i in infos),
        end=tokenizer.end if tokenizer is not None else None,
        width=width,
        num_documents=sum(info.num_documents for info in infos),
        num_tokens=sum(info.num_tokens for info in infos),
        num_empty=sum(info.num_empty for info in infos),
    )


def _write_parts(
    inputs: Inputs,
    reader: DocumentReader,
    parts: Sequence[Part],
    folder: Path,
    width: int,
    tell: OnProgress,
) -> list[PartInfo]:
    total, done = sum(part.num_bytes for part in parts), 0
    infos: list[PartInfo] = []
    for number, part in enumerate(parts):
        info = part_info(folder, number)
        infos.append(info or _write_part(inputs, reader, part, folder, number, width))
        done += part.num_bytes
        num_tokens = sum(info.num_tokens for info in infos)
        tell(PrepareProgress(inputs.path, done, total, num_tokens))
    return infos


def _write_part(
    inputs: Inputs, reader: DocumentReader, part: Part, folder: Path, number: int, width: int
) -> PartInfo:
    tokenizer = inputs.tokenizer
    writer = PartWriter(folder, number, width, tokenizer.end if tokenizer else None)
    try:
        for batch in _batches(reader.read(part)):
            for piece in batch:
                _check_kind(inputs, piece)
            contents = [piece.content for piece in batch]
            tokens = tokenizer.encode(contents) if tokenizer is not None else contents  # type: ignore[arg-type]
            for found, piece in zip(tokens, batch, strict=True):
                writer.add(found, is_last=piece.is_last)
        return writer.close()
    except BaseException:
        writer.give_up()
        raise


def _batches(pieces: Iterator[Piece]) -> Iterator[list[Piece]]:
    """So that a tokenizer has enough to do, and no more than that is in memory."""
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece.content)
        if size >= _BATCH_CHARACTERS or len(batch) >= _BATCH_PIECES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _check_kind(inputs: Inputs, piece: Piece) -> None:
    is_text = isinstance(piece.content, str)
    if is_text and inputs.tokenizer is None:
        raise HoldfastError(
            f"path = {inputs.path!r} holds text and no tokenizer is given: set data.tokenizer to a "
            f"tokenizer.json, a directory with one, or 'bytes'"
        )
    if not is_text and inputs.tokenizer is not None:
        raise HoldfastError(
            f"path = {inputs.path!r}: field {inputs.field!r} holds tokens already, and tokenizer = "
            f"{inputs.tokenizer.name!r}: leave the tokenizer out, or name a field with text"
        )
