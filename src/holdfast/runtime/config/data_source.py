"""The data of a job, from the words of its file to rows by number.

source_specs    which sources there are, with what they take from [data] and the model
check_sources   what can be refused without preparing anything
prepared_data   their token stores, found in the cache or made
open_rows       rows of them
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from holdfast.data.documents import BareTokens, TokenDocuments
from holdfast.data.formats import READY, Format, detect_format
from holdfast.data.megatron import open_megatron
from holdfast.data.preparation import (
    Inputs,
    OnProgress,
    default_cache,
    find_store,
    first_piece,
    prepare,
)
from holdfast.data.rows import RowKind, RowSource, make_rows
from holdfast.data.store import open_store, read_info
from holdfast.data.token_file import open_token_file
from holdfast.data.tokenizer import BYTES, CONFIG, FILE, Tokenizer, load_tokenizer
from holdfast.errors import HoldfastError
from holdfast.runtime.config.data_sections import DataKeys, SourceSection
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.model_source import model_vocab

FIELD = "text"
SOURCE_KEYS = ("format", "field", "tokenizer", "end_token", "dtype", "separator")
"""What a source takes from [data], if it does not say it itself."""


def data_keys(config: JobConfig, section: str) -> DataKeys:
    """Of [data] or [eval]; what [eval] does not say is as [data] says it."""
    if section == "data":
        return config.data
    data, own = config.data, config.eval
    inherited = ["seed"]
    if data.has_files or not own.has_files:
        inherited += ["kind", "field", "tokenizer", "end_token", "dtype", "separator"]
    default = {field.name: field.default for field in msgspec.structs.fields(DataKeys)}
    taken = {key: getattr(data, key) for key in inherited if getattr(own, key) == default[key]}
    return msgspec.structs.replace(own, **taken)


def data_sections(config: JobConfig) -> tuple[str, ...]:
    return ("data", "eval") if config.eval.every_steps else ("data",)


def source_specs(config: JobConfig, section: str) -> tuple[SourceSection, ...]:
    """Every source that has a path, complete."""
    keys = data_keys(config, section)
    if keys.path and keys.sources:
        raise HoldfastError(
            f"path = {keys.path!r} and sources = "
            f"{[source.path for source in keys.sources]} contradict each other: leave one out"
        )
    own = given_sources(getattr(config, section))
    return tuple(_completed(config, keys, source) for source in own)


def given_sources(keys: DataKeys) -> tuple[SourceSection, ...]:
    """As the job file has them."""
    if keys.sources or not keys.path:
        return keys.sources
    return (SourceSection(path=keys.path, **{key: getattr(keys, key) for key in SOURCE_KEYS}),)


def _completed(config: JobConfig, keys: DataKeys, source: SourceSection) -> SourceSection:
    missing = {name: getattr(keys, name) for name in SOURCE_KEYS if not _is_given(source, name)}
    kind = source.format or detect_format(source.path, source.dtype or keys.dtype)
    if kind in READY:  # what others need for text does not concern it
        missing = {name: missing[name] for name in ("dtype", "separator") if name in missing}
        return msgspec.structs.replace(source, **{**missing, "format": kind})
    source = msgspec.structs.replace(source, **missing)
    return msgspec.structs.replace(
        source,
        format=kind,
        field=source.field or FIELD,
        tokenizer=source.tokenizer or _model_tokenizer(config),
    )


def _is_given(source: SourceSection, name: str) -> bool:
    return getattr(source, name) not in ("", None)


def _model_tokenizer(config: JobConfig) -> str:
    folder = config.model.hf
    has_one = folder and any((Path(folder) / name).is_file() for name in (FILE, CONFIG))
    return folder if has_one else ""


def cache_folder(config: JobConfig) -> Path:
    return Path(config.data.cache) if config.data.cache else default_cache()


def inputs_of(source: SourceSection) -> Inputs | None:
    """What has to be prepared of a source; None: nothing, it holds tokens."""
    if source.format in READY:
        return None
    tokenizer: Tokenizer | None = None
    if source.tokenizer:
        tokenizer = load_tokenizer(source.tokenizer, source.end_token)
    return Inputs(
        source.path, msgspec.convert(source.format, Format), source.field or FIELD, tokenizer
    )


def check_sources(config: JobConfig, section: str) -> None:
    """What is wrong with the sources as they are: files, fields, tokenizers, vocabularies."""
    with _named(section):
        vocab = model_vocab(config)
        for source in source_specs(config, section):
            inputs = inputs_of(source)
            if inputs is None:
                _check_ready(source, vocab)
            else:
                _check_vocab(inputs.tokenizer, vocab)
                first_piece(inputs)


@contextmanager
def _named(section: str) -> Iterator[None]:
    """Errors say which section they are about."""
    try:
        yield
    except HoldfastError as error:
        raise HoldfastError(f"[{section}] {error}") from error.__cause__


def _check_vocab(tokenizer: Tokenizer | None, vocab: int) -> None:
    if tokenizer is not None and tokenizer.vocab > vocab:
        raise HoldfastError(
            f"tokenizer = {tokenizer.name!r} has {tokenizer.vocab} tokens, the model's "
            f"vocabulary is {vocab}: set model.vocab = {tokenizer.vocab} or above, or use the "
            f"model's own tokenizer"
        )


def _check_ready(source: SourceSection, vocab: int) -> None:
    for key in ("tokenizer", "field", "end_token"):
        if getattr(source, key) and source.format == "store":
            continue
        if getattr(source, key):
            raise HoldfastError(
                f"{key} = {getattr(source, key)!r} is for text, and {source.path} holds "
                f"tokens ({source.format}): leave it out"
            )
    if source.format == "megatron":
        open_megatron(Path(source.path), check=True)
    if source.format == "store" and (found := read_info(Path(source.path)).vocab) > vocab:
        raise HoldfastError(
            f"{source.path} has tokens up to {found - 1}, the model's vocabulary ends at "
            f"{vocab - 1}: set model.vocab = {found} or above"
        )


def with_prepared(
    config: JobConfig, *, make: bool, on_progress: OnProgress | None = None
) -> JobConfig:
    """The stores of all sources of the job, found in the cache or, with `make`, made; the same job
    where some are missing.
    """
    for section in data_sections(config):
        stores = _stores(config, section, on_progress if make else None, make=make)
        if stores is None:
            continue
        keys = msgspec.structs.replace(getattr(config, section), prepared=stores)
        config = msgspec.structs.replace(config, **{section: keys})
    return config


def _stores(
    config: JobConfig, section: str, on_progress: OnProgress | None, *, make: bool
) -> tuple[str, ...] | None:
    cache, found = cache_folder(config), []
    with _named(section):
        for source in source_specs(config, section):
            inputs = inputs_of(source)
            if inputs is None:
                found.append("")
                continue
            store = prepare(inputs, cache, on_progress) if make else find_store(inputs, cache)
            if store is None:
                return None
            _check_store(store, source, model_vocab(config))
            found.append(str(store.absolute()))
    return tuple(found)


def _check_store(store: Path, source: SourceSection, vocab: int) -> None:
    highest = read_info(store).vocab - 1
    if highest >= vocab:
        raise HoldfastError(
            f"{source.path} has tokens up to {highest}, the model's vocabulary ends at "
            f"{vocab - 1}: set model.vocab = {highest + 1} or above"
        )


def open_ready(source: SourceSection) -> TokenDocuments:
    """A source that holds tokens, where it is."""
    path = Path(source.path)
    match source.format:
        case "store":
            return open_store(path)
        case "megatron":
            return open_megatron(path)
        case "tokens":
            return BareTokens(open_token_file(path, source.dtype), source.separator)
        case _:
            raise HoldfastError(f"{source.path} has not been prepared: holdfast data prepare")


def open_rows(config: JobConfig, section: str) -> list[RowSource]:
    """Inputs that have been prepared are not looked at again: they may be gone by now."""
    keys = data_keys(config, section)
    sources = given_sources(keys)
    stores: Sequence[str] = keys.prepared or [""] * len(sources)
    kind = msgspec.convert(keys.row_kind, RowKind)
    rows: list[RowSource] = []
    for source, store in zip(sources, stores, strict=True):
        if store:
            found: TokenDocuments = open_store(Path(store), source.path)
        else:
            found = open_ready(_completed(config, keys, source))
        rows.append(make_rows(found, kind, config.data.seq_len, keys.truncate))
    return rows


Keys = TypeVar("Keys", bound=DataKeys)


def with_absolute_paths(keys: Keys) -> Keys:
    """As a run directory keeps them."""

    def absolute(path: str) -> str:
        return os.path.abspath(path) if path not in ("", BYTES) else path

    sources = tuple(
        msgspec.structs.replace(
            source, path=absolute(source.path), tokenizer=absolute(source.tokenizer)
        )
        for source in keys.sources
    )
    return msgspec.structs.replace(
        keys, path=absolute(keys.path), tokenizer=absolute(keys.tokenizer), sources=sources
    )
