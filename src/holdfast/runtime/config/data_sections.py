"""[data] and [eval] of a job file: where rows come from, and what they are."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from holdfast.errors import HoldfastError
from holdfast.runtime.config.section_types import Degree, Natural, Section, Seed, Size

SourceFormat = Literal["", "text", "jsonl", "parquet", "datasets", "megatron", "tokens", "store"]


class SourceSection(Section, frozen=True, kw_only=True):
    """One of `[[data.sources]]`; what it does not say is as `[data]` says it."""

    path: str
    """A file, a directory, or a pattern like data/*.jsonl."""
    weight: Annotated[float, Meta(gt=0, le=1e9)] = 1.0
    """Its share of the rows, relative to the weights of the others."""
    format: SourceFormat = ""
    """Empty = as its name says."""
    field: str = ""
    """Empty = that of [data]; so are those that follow."""
    tokenizer: str = ""
    """A tokenizer.json, a directory with one, or "bytes"."""
    end_token: str = ""
    """Behind every document."""
    dtype: Literal["", "uint16", "uint32"] = ""
    """Of a token file of bare numbers."""
    separator: Annotated[int, Meta(ge=0, le=10**7)] | None = None
    """Packed rows of a token file: the token that ends a document."""


class DataKeys(Section, frozen=True, kw_only=True):
    """What `[data]` and `[eval]` have in common."""

    factory: str = ""
    """Instead of a path: the import path of what makes a dataset of the user's own, with a length
    and sequences of tokens by number.
    """
    arguments: dict[str, Any] = {}
    """What the factory is called with."""
    kind: Literal["", "synthetic", "tokens", "packed", "documents"] = ""
    """What a row is: a window of documents end to end (tokens); the same, and attention looks
    inside documents (packed); one document (documents); or made from nothing (synthetic). Empty:
    tokens where there is a path, otherwise synthetic.
    """
    path: str = ""
    """A file, a directory, or a pattern like data/*.jsonl."""
    format: SourceFormat = ""
    """Of what is there; empty = as its name says."""
    field: str = ""
    """Of JSON lines, or the column of a table, that holds the text (or tokens); empty = text."""
    tokenizer: str = ""
    """A tokenizer.json, a directory with one, or "bytes"; empty = that of [model] hf."""
    end_token: str = ""
    """Behind every document; empty = as the tokenizer's directory says."""
    dtype: Literal["", "uint16", "uint32"] = ""
    """Of a token file of bare numbers."""
    separator: Annotated[int, Meta(ge=0, le=10**7)] | None = None
    """Packed rows of a token file: the token that ends a document."""
    truncate: Literal["end", "begin"] = "end"
    """Rows of one document: what is cut off where it is longer than the row."""
    sources: tuple[SourceSection, ...] = ()
    """Instead of a path: a mixture."""
    prepared: tuple[str, ...] = ()
    """The token store of every source; written by a run, and found or made where it is empty."""
    seed: Seed | None = None
    """Empty = the job's."""

    def __post_init__(self) -> None:
        if self.arguments and not self.factory:
            raise HoldfastError(f"arguments = {self.arguments} are for a factory, there is none")

    @property
    def has_files(self) -> bool:
        return bool(self.path or self.sources)

    @property
    def row_kind(self) -> str:
        return self.kind or ("tokens" if self.has_files else "synthetic")


class DataSection(DataKeys, frozen=True, kw_only=True):
    seq_len: Size = 32
    """Tokens in a sequence."""
    rows: Degree = 2
    """Sequences in a micro-batch."""
    micro_batches: Annotated[int, Meta(ge=0, le=65_536)] = 0
    """Of one step, over all replicas; 0 = as many as the first plan has."""
    shortest: Annotated[int, Meta(ge=0, le=10**7)] = 0
    """Lengths vary from here to seq_len; 0 = all are seq_len, and of packed documents from 4 on."""
    cache: str = ""
    """Where prepared tokens are kept; empty = holdfast/data in the user's cache directory."""


class EvalSection(DataKeys, frozen=True, kw_only=True):
    """What it does not say of the source is as [data] says it; so are rows and seq_len."""

    every_steps: Natural = 0
    """The state before step 0, this number, twice this number, ... is evaluated, and the last one;
    0 = none is.
    """
    micro_batches: Annotated[int, Meta(ge=0, le=65_536)] = 0
    """Of one evaluation, always the same; 0 = as many as a step has."""
