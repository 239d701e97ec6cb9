"""From the job file, the environment and the command line to a `JobConfig`.

Command line over environment over file over default:

    --parallel.tensor 2      HOLDFAST_PARALLEL__TENSOR=2      [parallel] tensor = 2

On the command line a key that only one section has needs no section: `--steps 10`, `--tp 2`.
Every value remembers where it came from, so that a complaint names the place to look at.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, get_args, get_origin

import msgspec

from holdfast.data.tokenizer import BYTES
from holdfast.engine.import_path import anchored
from holdfast.errors import HoldfastError
from holdfast.runtime.config.job_file import ALIASES, SECTIONS, JobConfig
from holdfast.runtime.config.parallel_sections import ChangeSection, ParallelSection
from holdfast.runtime.faults.kinds import FAULT_KINDS, Fault

PREFIX = "HOLDFAST_"
PATHS = {
    ("parallel", "plan"),
    ("data", "path"),
    ("data", "tokenizer"),
    ("data", "cache"),
    ("eval", "path"),
    ("eval", "tokenizer"),
    ("job", "tls_cert"),
    ("job", "tls_key"),
    ("job", "resume"),
    ("job", "source_dir"),
    ("model", "hf"),
    ("snapshot", "memory_folder"),
    ("emulate", "profile"),
}
"""Relative to the job file where the job file names them."""
EXIT_USAGE = 2
AUTO = "auto"
"""For `job.resume`: whatever can be gone on from."""


class Given(NamedTuple):
    """A value and where it was given."""

    value: Any
    source: str


Layer = dict[str, dict[str, Given]]
"""Section -> key -> what was given, in our own names."""


def read_config(
    path: Path, flags: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> JobConfig:
    """The job as all sources together say it."""
    return read_tables(load_tables(path), path, flags, environment)


def read_tables(
    tables: dict[str, Any],
    path: Path,
    flags: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> JobConfig:
    """The same from what a file says, or would; errors and relative paths refer to `path`."""
    changes, faults = tables.pop("change", []), tables.pop("faults", [])
    merged: Layer = {section: {} for section in SECTIONS}
    for layer in (
        file_layer(tables, path),
        environment_layer(environment or {}),
        flag_layer(flags),
    ):
        for section, given in layer.items():
            merged[section].update(given)
    merged["job"].setdefault("source_dir", Given(str(path.parent.absolute()), str(path)))
    for section, key in (("job", "source_dir"), ("model", "hf")):
        found = merged[section].get(key)
        if found is not None and isinstance(found.value, str) and found.value:
            # The run directory keeps the job, and is read from anywhere.
            merged[section][key] = Given(os.path.abspath(found.value), found.source)
    folder = merged["job"]["source_dir"].value
    for key in ("factory", "lr_schedule"):
        found = merged["optimizer"].get(key)
        if found is not None and isinstance(found.value, str) and isinstance(folder, str):
            merged["optimizer"][key] = Given(anchored(found.value, folder), found.source)
    sections = {name: _build(name, given, str(path)) for name, given in merged.items()}
    first: Any = sections["parallel"]
    return JobConfig(
        **sections,
        changes=tuple(_read_changes(changes, path, first)),
        faults=tuple(_read_faults(faults, path)),
    )


# The file.


def load_tables(path: Path) -> dict[str, Any]:
    if path.suffix == ".py":
        raise HoldfastError(f"{path} is a Python script; `holdfast run` takes a job file (TOML)")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise HoldfastError(f"{path}: not a text file") from None
    except tomllib.TOMLDecodeError as error:
        raise HoldfastError(f"{path}: not a TOML file: {error}") from None


def file_layer(tables: Mapping[str, Any], path: Path) -> Layer:
    layer: Layer = {}
    for section, table in tables.items():
        if section not in SECTIONS:
            hint = nearest(section, [*SECTIONS, "change", "faults"])
            raise HoldfastError(f"{path}: there is no section [{section}]; {hint}")
        if not isinstance(table, dict):
            raise HoldfastError(f"{path}: {section} = {table!r}: a section [{section}] is needed")
        layer[section] = _file_section(section, table, path)
    return layer


def _file_section(
    section: str, table: Mapping[str, Any], path: Path, title: str = ""
) -> dict[str, Given]:
    title = title or f"[{section}]"
    given: dict[str, Given] = {}
    names: dict[str, str] = {}
    for key, value in table.items():
        ours = our_key(section, key, str(path), title)
        first = names.setdefault(ours, key)
        if first != key:
            raise HoldfastError(
                f"{path}: {title} {first} = {table[first]!r} and {key} = {value!r} are the same "
                f"key; leave one out"
            )
        if (section, ours) in PATHS:
            value = _beside(path, value)
        elif section in ("data", "eval") and ours == "sources" and isinstance(value, list):
            value = [_source_beside(path, source) for source in value]
        for name, part in _in_parts(section, ours, value):
            given[name] = Given(part, str(path))
    return given


def _beside(path: Path, value: Any) -> Any:
    """A path that a job file names is relative to it."""
    is_path = isinstance(value, str) and value not in ("", AUTO, BYTES)
    return str(path.parent / value) if is_path else value


def _source_beside(path: Path, source: Any) -> Any:
    if not isinstance(source, dict):
        return source
    paths = {key: _beside(path, source[key]) for key in ("path", "tokenizer") if key in source}
    return {**source, **paths}


def _read_changes(
    entries: object, path: Path, parallel: ParallelSection
) -> Iterator[ChangeSection]:
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise HoldfastError(f"{path}: change: sections [[change]] are needed")
    degrees = parallel if not parallel.plan else ParallelSection()
    for number, entry in enumerate(entries, 1):
        place = f"{path}: [[change]] number {number}"
        table = dict(entry)
        if "at_step" not in table:
            raise HoldfastError(f"{place} does not say at_step")
        at_step = table.pop("at_step")
        given = _file_section("parallel", table, path, "[[change]]")
        if not given:
            raise HoldfastError(f"{place} (at step {at_step}) changes nothing: name a plan or keys")
        if "plan" in given:
            change = _build("parallel", given, str(path))
        else:
            kept = {
                key: Given(value, str(path))
                for key, value in msgspec.structs.asdict(degrees).items()
            }
            change = degrees = _build("parallel", {**kept, **given}, str(path))
        try:
            yield msgspec.convert({"at_step": at_step, "parallel": change}, ChangeSection)
        except msgspec.ValidationError as error:
            raise HoldfastError(f"{place}: at_step = {at_step!r}: {_plain(error)}") from None


def _read_faults(entries: object, path: Path) -> Iterator[Fault]:
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise HoldfastError(f"{path}: faults: sections [[faults]] are needed")
    for number, entry in enumerate(entries, 1):
        for key, value in entry.items():
            if not is_finite(value):
                raise HoldfastError(
                    f"{path}: [[faults]] number {number}: {key} = {value!r}: a finite number is "
                    f"needed"
                )
        try:
            yield msgspec.convert(entry, Fault)
        except (msgspec.ValidationError, HoldfastError) as error:
            why = _plain(error)
            if "kind" in entry and entry["kind"] not in FAULT_KINDS:
                why = f"kind = {entry['kind']!r}: {nearest(str(entry['kind']), FAULT_KINDS)}"
            raise HoldfastError(f"{path}: [[faults]] number {number}: {why}") from None


# The environment and the command line.


def environment_layer(environment: Mapping[str, str]) -> Layer:
    """`HOLDFAST_SECTION__KEY`; other names are not ours."""
    layer: Layer = {}
    for name, text in environment.items():
        match = re.fullmatch(PREFIX + r"([A-Z]+)__(\w+)", name)
        if match is None:
            continue
        section = match[1].lower()
        if section not in SECTIONS:
            hint = nearest(section, SECTIONS)
            raise HoldfastError(f"{name}: there is no section [{section}]; {hint}")
        key = our_key(section, match[2].lower(), name)
        for part, value in _in_parts(section, key, parse_value(section, key, text)):
            layer.setdefault(section, {})[part] = Given(value, name)
    return layer


def flag_layer(tokens: Sequence[str]) -> Layer:
    layer: Layer = {}
    for flag, text in split_flags(tokens):
        section, key, value = _flag_value(flag, text)
        for name, part in _in_parts(section, key, value):
            layer.setdefault(section, {})[name] = Given(part, flag)
    return layer


def split_flags(tokens: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """(`--section.key`, value); None where no value follows."""
    at = 0
    while at < len(tokens):
        flag, equals, text = tokens[at].partition("=")
        if not flag.startswith("--") or len(flag) < 3:
            raise HoldfastError(
                f"{tokens[at]!r} is not a setting like --job.steps 10", exit_code=EXIT_USAGE
            )
        at += 1
        if equals:
            yield flag, text
        elif at < len(tokens) and not tokens[at].startswith("--"):
            yield flag, tokens[at]
            at += 1
        else:
            yield flag, None


SHORT = {
    "plan": "parallel",
    "port": "job",
    "host": "job",
    "micro_batches": "data",
    **dict.fromkeys(("kind", "path", "format", "field", "tokenizer", "separator"), "data"),
    **dict.fromkeys(("end_token", "truncate"), "data"),
}
"""Keys of several sections: which one a flag without a section means."""


def _flag_value(flag: str, text: str | None) -> tuple[str, str, Any]:
    name = flag[2:].replace("-", "_")
    section, dot, key = name.rpartition(".")
    if dot and section not in SECTIONS:
        hint = nearest(section, SECTIONS)
        raise HoldfastError(
            f"{flag}: there is no section [{section}]; {hint}", exit_code=EXIT_USAGE
        )
    homes = [section] if dot else list(SECTIONS)
    found = [(home, key, True) for home in homes if _knows(home, key)]
    if not found and key.startswith("no_"):
        bare = key.removeprefix("no_")
        found = [(home, bare, False) for home in homes if _is_switch(home, bare)]
    if not found:
        known = [f"{home}.{known}" for home in homes for known in _keys(home)]
        hint = nearest(name if dot else f"job.{name}", known)
        raise HoldfastError(f"{flag} is no setting; {hint}", exit_code=EXIT_USAGE)
    if len(found) > 1 and key in SHORT:
        found = [choice for choice in found if choice[0] == SHORT[key]]
    if len(found) > 1:
        choices = " or ".join(f"--{home}.{key}" for home, key, _ in found)
        raise HoldfastError(f"{flag} is not clear: say {choices}", exit_code=EXIT_USAGE)
    home, key, positive = found[0]
    ours = our_key(home, key, flag)
    if text is None and not _is_switch(home, ours):
        raise HoldfastError(f"{flag} needs a value", exit_code=EXIT_USAGE)
    if text is None or not positive:
        return home, ours, positive
    return home, ours, parse_value(home, ours, text)


def _knows(section: str, key: str) -> bool:
    return key in _keys(section)


def _is_switch(section: str, key: str) -> bool:
    kind = _types(section).get(key)
    return kind is bool or bool in get_args(kind)


def parse_value(section: str, key: str, text: str) -> Any:
    """Text where the key takes it, else what it means in TOML; `3,4` is a list."""
    kind = _types(section)[key]
    for attempt in (text, _toml(text), _toml(f"[{text}]")):
        try:
            msgspec.convert(attempt, kind)
            return attempt
        except msgspec.ValidationError:
            continue
    parsed = _toml(text)
    return text if parsed is None else parsed


def _in_parts(section: str, key: str, value: Any) -> list[tuple[str, Any]]:
    """torchrun's `--nnodes MIN:MAX` says two things."""
    text = value if (section, key) == ("net", "nodes") and isinstance(value, str) else ""
    found = re.fullmatch(r"(\d+):(\d+)", text)
    if found is None:
        return [(key, value)]
    return [("min_nodes", int(found[1])), ("nodes", int(found[2]))]


def _toml(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return None


# Keys and values.


def our_key(section: str, key: str, source: str, title: str = "") -> str:
    """A key in our own name; refused where no section has it."""
    if not _knows(section, key):
        hint = nearest(key, _keys(section))
        raise HoldfastError(f"{source}: {title or f'[{section}]'} has no key {key!r}; {hint}")
    return ALIASES.get(section, {}).get(key, key)


def nearest(word: str, known: Iterable[str]) -> str:
    """`did you mean x?`, or all there are."""
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"


def _keys(section: str) -> list[str]:
    return [*SECTIONS[section].__struct_fields__, *ALIASES.get(section, {})]


def _types(section: str) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(SECTIONS[section])}


def _build(section: str, given: Mapping[str, Given], path: str) -> Any:
    """One section from its values, each checked by itself so that the complaint can name it."""
    fields = {field.name: field for field in msgspec.structs.fields(SECTIONS[section])}
    values: dict[str, Any] = {}
    for key, (value, source) in given.items():
        try:
            values[key] = msgspec.convert(value, fields[key].type)
        except msgspec.ValidationError as error:
            _refuse_value(section, key, Given(value, source), fields[key].type, error)
        if not is_finite(value):
            raise HoldfastError(f"{source}: {section}.{key} = {value!r}: a finite number is needed")
    for name, field in fields.items():
        if field.required and name not in values:
            raise HoldfastError(f"{path}: [{section}] does not say {name}")
    try:
        return SECTIONS[section](**values)
    except HoldfastError as error:
        raise HoldfastError(f"{path}: [{section}] {error}") from None


def is_finite(value: Any) -> bool:
    """Numbers, and all numbers of a list; anything else is."""
    if isinstance(value, dict):
        return all(map(is_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(is_finite, value))
    return not isinstance(value, float) or isfinite(value)


def _refuse_value(
    section: str, key: str, given: Given, kind: Any, error: msgspec.ValidationError
) -> NoReturn:
    why = _plain(error)
    if get_origin(kind) is Literal:
        why = f"known: {', '.join(repr(choice) for choice in get_args(kind) if choice)}"
    if (section, key) == ("net", "nodes") and ":" in str(given.value):
        why = "N or MIN:MAX is needed, like 4 or 2:4"
    raise HoldfastError(f"{given.source}: {section}.{key} = {given.value!r}: {why}") from None


def _plain(error: Exception) -> str:
    text = str(error).partition(" - at ")[0].replace("`", "")
    return text[0].lower() + text[1:]
