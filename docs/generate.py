"""Makes the pages below reference/ from the code: `make reference`. A test compares them.

settings.md   every section and key of a job file, from the types that read it
api.md        what `import holdfast` promises, from docstrings
commands.md   the command line, from its parser
"""

import inspect
import re
from pathlib import Path
from typing import Any

import msgspec

import holdfast
from holdfast.cli.main import build_app
from holdfast.runtime.config.job_file import SECTIONS
from holdfast.runtime.config.job_file import __doc__ as job_file_text
from holdfast.runtime.config.setting_docs import LISTS, field_texts, section_docs

FOLDER = Path(__file__).parent / "reference"
MADE = "<!-- Made by docs/generate.py (make reference); do not edit. -->"

GROUPS = {
    "Training": ("train", "HoldfastError"),
    "Models": ("sequential", "cross_entropy", "column", "row", "vocabulary", "replicated"),
    "Callbacks and logs": ("Callback", "LogRun", "LogPoint"),
    "Events": (
        "JobStarted",
        "StepDone",
        "Evaluated",
        "CheckpointWritten",
        "Recovered",
        "Restored",
        "PlanChanged",
        "JobEnded",
    ),
    "Your own loop": ("Snapshotter", "RandomState"),
}


def pages() -> dict[str, str]:
    return {"settings.md": settings(), "api.md": api(), "commands.md": commands()}


def settings() -> str:
    lines = [
        MADE,
        "# Settings",
        "Every section and key of a job file. On the command line a key is `--section.key value`, "
        "in the environment `HOLDFAST_SECTION__KEY`. What an empty default means is said with its "
        "key.",
    ]
    for section in [*SECTIONS, *LISTS]:
        title = f"[[{section}]]" if section in LISTS else f"[{section}]"
        rows = ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
        for doc in section_docs(section):
            names = ", ".join(f"`{name}`" for name in (doc.key, *doc.aliases))
            default = f"`{doc.default}`" if doc.default else ""
            cells = [names, doc.kind, default, doc.meaning]
            rows.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
        lines += [f"## {title}", *([about] if (about := _about(section)) else []), "\n".join(rows)]
    lines += [
        "## [[change]]",
        "`at_step`, and a `plan` or the keys of [parallel] that differ from then on.",
    ]
    return "\n\n".join(lines) + "\n"


def _about(section: str) -> str:
    """The line about it in the theory of the job file."""
    found = re.search(rf"^    \[+{re.escape(section)}\]+ +(.*)$", job_file_text or "", re.M)
    return f"{found[1][0].upper()}{found[1][1:]}." if found else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def api() -> str:
    promised = {name for names in GROUPS.values() for name in names} | {"__version__"}
    if missing := promised ^ set(holdfast.__all__):
        raise SystemExit(f"docs/generate.py and holdfast.__all__ differ in {sorted(missing)}")
    lines = [
        MADE,
        "# Python",
        "`import holdfast as hf`. What is here stays; everything else may change.",
    ]
    for title, names in GROUPS.items():
        lines.append(f"## {title}")
        for name in names:
            lines += describe(name, getattr(holdfast, name))
    return "\n\n".join(lines) + "\n"


def describe(name: str, found: Any) -> list[str]:
    if isinstance(found, type) and issubclass(found, msgspec.Struct):
        return [f"### {name}", _text(found), _fields(found)]
    lines = [f"### {name}", f"```text\nhf.{name}{_signature(found)}\n```", _text(found)]
    if isinstance(found, type) and not issubclass(found, Exception):
        for method, member in vars(found).items():
            if not method.startswith("_") and callable(member):
                lines += [f"**{method}**`{_signature(member)}`", _text(member)]
    return lines


def _fields(found: type[msgspec.Struct]) -> str:
    texts = field_texts(found)
    rows = ["| field | type | |", "| --- | --- | --- |"]
    for field in msgspec.structs.fields(found):
        kind = inspect.formatannotation(field.type)
        rows.append(f"| `{field.name}` | {_cell(kind)} | {_cell(texts.get(field.name, ''))} |")
    return "\n".join(rows)


def _signature(found: Any) -> str:
    try:
        text = str(inspect.signature(found))
    except (TypeError, ValueError):
        return "(...)"
    text = re.sub(r"<(?:built-in )?function (\w+)[^>]*>", r"\1", text.replace("~_", ""))
    return re.sub(
        r"\b(?:[A-Za-z_]\w*\.)+(?=\w)", "", text.replace("self, ", "").replace("(self)", "()")
    )


def _text(found: Any) -> str:
    return inspect.cleandoc(found.__doc__ or "").replace("\n    ", "\n        ")


def commands() -> str:
    text = build_app().generate_docs()
    text = text.replace("```console", "```text").replace("# holdfast\n", "# Commands\n", 1)
    return f"{MADE}\n\n{text.rstrip()}\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
