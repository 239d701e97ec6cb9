"""How much data a job has, for people and programs."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from holdfast.data.order import shares_of
from holdfast.data.store import read_info
from holdfast.runtime.config.data_source import (
    data_keys,
    data_sections,
    given_sources,
    open_rows,
    source_specs,
)
from holdfast.runtime.launch.job import Job


class SourceSummary(msgspec.Struct, frozen=True, kw_only=True):
    section: str
    """data or eval"""
    path: str
    format: str
    store: str
    """Where its tokens are; empty: it has not been prepared."""
    share: float
    """Of all rows of the section."""
    num_documents: int = 0
    """0: it does not say."""
    num_tokens: int = 0
    num_empty: int = 0
    """Documents without text, which were left out."""
    num_rows: int = 0


def summarise_data(job: Job) -> list[SourceSummary]:
    return [summary for section in data_sections(job.config) for summary in _of(job, section)]


def _of(job: Job, section: str) -> list[SourceSummary]:
    config, keys = job.config, data_keys(job.config, section)
    if keys.factory or not keys.has_files:
        return []
    specs = source_specs(config, section)
    shares = shares_of([source.weight for source in given_sources(keys)])
    is_ready = len(keys.prepared) == len(specs)
    rows = open_rows(config, section) if is_ready else []
    return [
        SourceSummary(
            section=section,
            path=spec.path,
            format=spec.format,
            store=(keys.prepared[at] or spec.path) if is_ready else "",
            share=shares[at] / sum(shares),
            num_rows=rows[at].num_rows if is_ready else 0,
            **(_counts(keys.prepared[at], rows[at].num_tokens) if is_ready else {}),
        )
        for at, spec in enumerate(specs)
    ]


def _counts(store: str, num_tokens: int) -> dict[str, int]:
    if not store:
        return {"num_tokens": num_tokens}
    info = read_info(Path(store))
    return {
        "num_documents": info.num_documents,
        "num_tokens": info.num_tokens,
        "num_empty": info.num_empty,
    }


def data_lines(job: Job, found: Sequence[SourceSummary]) -> list[str]:
    lines = []
    data, count = job.config.data, job.plans[0].plan.num_micro_batches
    for one in found:
        line = f"{one.section}: {one.path} ({one.format})"
        if not one.store:
            lines.append(f"{line} is not prepared yet: the run does it, or holdfast data prepare")
            continue
        documents = f"{one.num_documents:,} documents, " if one.num_documents else ""
        line += f": {documents}{one.num_tokens:,} tokens, {one.num_rows:,} rows"
        if one.num_empty:
            line += f"; {one.num_empty:,} documents without text are left out"
        if one.section == "data":
            per_step = data.rows * count * one.share
            line += f"; {one.num_rows / per_step:,.1f} steps are an epoch"
        if one.share < 1:
            line += f"; {one.share:.2%} of all rows"
        lines.append(line)
    return lines
