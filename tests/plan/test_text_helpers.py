import msgspec
import pytest

from holdfast.errors import HoldfastError
from holdfast.plan.text_helpers import convert, refuse_unknown, toml_list, toml_text


class Point(msgspec.Struct):
    x: int


def test_errors_name_the_place_and_the_value() -> None:
    for call, words in {
        lambda: convert({"x": "many"}, Point, "the point"): "the point: Expected `int`",
        lambda: refuse_unknown({"z": 1}, ("x", "y"), "the point"): "unknown key 'z'; known: x, y",
        lambda: toml_list({"x": 1}, "x"): "x = 1: a list is needed",
        lambda: toml_text({"x": 1}, "x", "the point"): "the point: x = 1",
    }.items():
        with pytest.raises(HoldfastError) as caught:
            call()
        assert words in str(caught.value)


def test_good_values_pass() -> None:
    assert convert({"x": 3}, Point, "the point") == Point(3)
    assert toml_list({}, "x") == []
    assert toml_text({"x": "a"}, "x", "the point") == "a"
