"""Every setting says its type, its default and what it means."""

from typing import Annotated, Literal

import pytest
from msgspec import Meta

from holdfast.runtime.config.job_file import SECTIONS
from holdfast.runtime.config.setting_docs import LISTS, describe_type, format_value, section_docs
from tidy.source_tree import assert_none


@pytest.mark.parametrize("section", [*SECTIONS, *LISTS])
def test_every_setting_has_a_meaning(section):
    found = section_docs(section)
    assert found
    assert_none(f"[{section}] {doc.key} has no text" for doc in found if not doc.meaning)


def test_a_setting_is_described():
    docs = {doc.key: doc for doc in section_docs("job")}
    assert docs["steps"].default == "required"
    assert docs["timeout_s"].kind == "number, 0.001 to 86400"
    assert docs["timeout_s"].default == "120"
    assert docs["timeout_s"].meaning.startswith("How long one operation")
    assert "tp" in {doc.key: doc for doc in section_docs("parallel")}["tensor"].aliases


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (int, "integer"),
        (str | None, "text"),
        (Literal["", "a", "b"], '"a" or "b"'),
        (Annotated[float, Meta(gt=0, lt=1)], "number, above 0 below 1"),
        (Annotated[float, Meta(gt=0, le=5)], "number, above 0 to 5"),
        (str | tuple[int, ...], "text or list of integer"),
        (dict[str, float], "table of number"),
        (Annotated[str, Meta(pattern="x")], "text"),
    ],
)
def test_types_in_words(kind, words):
    assert describe_type(kind) == words


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), ("", ""), (True, "true"), ("a", '"a"'), ((1, 2), "[1, 2]"), (600.0, "600")],
)
def test_values_as_in_toml(value, text):
    assert format_value(value) == text
