"""The project speaks only of itself, and promises nothing it does not hold."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tidy.source_tree import ROOT, SRC, assert_none, project_files


def joined(text: str) -> str:
    """The words below carry a bar in the middle, so that this file does not contain them."""
    return text.replace("~", "")


MACHINE = "a path of one machine"
REGISTRY = "the host of a package registry"

EVERYWHERE = {
    joined(r"(?<![\w.])/(wo~rk|fa~rm)/"): MACHINE,
    joined(r"\bpy~pi\.(org|python\.org)\b"): REGISTRY,
    joined(r"\bpython~hosted\.org\b"): REGISTRY,
    joined(r"\bdownload\.py~torch\.org\b"): REGISTRY,
    joined(r"\bregistry\.npm~js\.org\b"): REGISTRY,
    joined(r"\bana~conda\.org\b"): REGISTRY,
    joined(r"\bas an A~I\b"): "the project has no author who says this",
    joined(r"(?i)\bthis sess~ion\b"): "a reader was not there",
}

IN_SOURCE = {
    joined(r"\b(TO~DO|FIX~ME|XX~X)\b"): "finish it, or write down what holds now",
    joined(r"\bNotImplemented~Error\b"): "what is not there is not offered",
}


PLAIN = {
    joined(r"(?i)\b(every~body|some~body|no~body|any~body|who~ever)\b"): (
        "name the worker, the agent or the coordinator"
    ),
}

PICTURES = {
    r"(?i)\b(everyone|no one)\b": "name the workers, the agents or the coordinator",
    r"(?i)\b(strikes?|struck)\b": "a fault is injected, or it happens",
    r"(?i)\b(wars?|peace|peaceful)\b": "say whether faults happen",
    r"(?i)\b(obeys?|obeyed|obedience|heeds?|heeded)\b": "an order is followed or carried out",
    r"(?i)\b(nursery|nurseries|porters?|vigils?|crews?|offices?)\b": "name the part by its work",
    r"(?i)\b(bury|buries|buried|burial|born|rehears(?:al|als|e|ed))\b": "say what is done",
}
"""Pictures that once stood for parts of this system: who reads them has to guess what is meant."""


def wrong_words(text: str, rules: Mapping[str, str]) -> Iterator[str]:
    """`line: word: reason` for every match."""
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, reason in rules.items():
            if (found := re.search(pattern, line)) is not None:
                yield f"{number}: {found[0]!r}: {reason}"


def texts(paths: list[Path]) -> Iterator[tuple[str, str]]:
    """(path, text) of the files that are text."""
    for path in paths:
        try:
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def complaints(paths: list[Path], rules: Mapping[str, str]) -> list[str]:
    return [f"{name}:{line}" for name, text in texts(paths) for line in wrong_words(text, rules)]


def test_the_project_speaks_only_of_itself():
    files = project_files()
    assert ROOT / "pyproject.toml" in files
    assert_none(complaints(files, EVERYWHERE))


def test_the_source_leaves_nothing_open():
    assert_none(complaints(sorted(SRC.rglob("*.py")), IN_SOURCE))


def spoken() -> list[Path]:
    """What is written for readers: sources, tests, pages, examples."""
    written = [path for path in project_files() if path.suffix in (".py", ".md", ".toml")]
    assert {SRC / "errors.py", ROOT / "README.md", Path(__file__).resolve()} <= set(written)
    return written


def test_the_project_says_who_does_what():
    assert_none(complaints(spoken(), PLAIN))
    assert len(list(wrong_words(joined("Every~body waits."), PLAIN))) == 1


def test_the_source_and_the_docs_use_no_pictures():
    parts = (SRC, ROOT / "docs", ROOT / "README.md")
    files = [path for path in spoken() if any(path.is_relative_to(part) for part in parts)]
    assert_none(complaints(files, PICTURES))


@pytest.mark.parametrize("text", ["Everyone waits.", "once peace is made", "two struck workers"])
def test_pictures_are_seen(text):
    assert len(list(wrong_words(text, PICTURES))) == 1


@pytest.mark.parametrize("text", ["every one of them", "a warning", "a border"])
def test_no_picture_is_seen_where_none_is(text):
    assert list(wrong_words(text, PICTURES)) == []


@pytest.mark.parametrize(
    "text",
    [
        "see /wo~rk/main/x.py",
        'open("/fa~rm/data")',
        "pip install -i https://py~pi.org/simple",
        "https://files.python~hosted.org/packages",
        "As is known, as an A~I I cannot",
        "found in This sess~ion.",
    ],
)
def test_words_from_elsewhere_are_seen(text):
    assert len(list(wrong_words(joined(text), EVERYWHERE))) == 1


@pytest.mark.parametrize("text", ["# TO~DO: later", "raise NotImplemented~Error", "# XX~X"])
def test_open_ends_are_seen(text):
    assert len(list(wrong_words(joined(text), IN_SOURCE))) == 1


@pytest.mark.parametrize("text", ["frame/work/x", "../work/x", "training sessions", "as an aid"])
def test_plain_words_pass(text):
    assert list(wrong_words(text, EVERYWHERE | IN_SOURCE)) == []
