"""Tests of real processes are dealt out to the test processes, and come first in each."""

from types import SimpleNamespace

import pytest

from support.order import parts, pytest_collection_modifyitems


class Item:
    def __init__(self, name: str) -> None:
        self.name = name

    def get_closest_marker(self, name: str) -> object | None:
        return True if self.name.isupper() else None


def order(config: SimpleNamespace) -> str:
    items = [Item(name) for name in "abcAdBefCD"]
    pytest_collection_modifyitems(config, items)
    return "".join(item.name for item in items)


def test_each_test_process_begins_with_a_part_of_the_real_ones():
    assert order(SimpleNamespace(workerinput={"workercount": 2})) == "ABabcCDdef"
    assert order(SimpleNamespace(workerinput={"workercount": 1})) == "ABCDabcdef"


def test_alone_they_run_as_they_are_written():
    assert order(SimpleNamespace()) == "abcAdBefCD"


@pytest.mark.parametrize("number", [1, 2, 3, 7])
def test_parts_are_all_there_and_of_equal_length(number):
    found = parts(range(5), number)
    assert [n for part in found for n in part] == list(range(5))
    assert max(map(len, found)) - min(map(len, found)) <= 1
