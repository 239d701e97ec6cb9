"""Tests of real processes are dealt out to the test processes, and come first in each."""

import os
from types import SimpleNamespace

import pytest

from support.order import deal, has_idle_core, parts, pytest_collection_modifyitems


class Item:
    def __init__(self, name: str) -> None:
        self.name = name

    def get_closest_marker(self, name: str) -> object | None:
        return True if self.name.isupper() else None


def order(number: int | None = None) -> str:
    config = SimpleNamespace(stash={})
    if number is not None:
        config.workerinput = {"workercount": number, "workerid": "gw0"}
    items = [Item(name) for name in "abcAdBefCD"]
    pytest_collection_modifyitems(config, items)
    return "".join(item.name for item in items)


def test_each_test_process_begins_with_a_part_of_the_real_ones():
    assert order(2) == "ABabcCDdef"
    assert order(1) == "ABCDabcdef"


def test_the_last_of_three_has_none_of_them():
    assert order(3) == "ABaCDbcdef"


@pytest.mark.parametrize("number", [1, 2, 3, 4])
@pytest.mark.parametrize(("num_real", "num_quick"), [(0, 7), (5, 0), (4, 9), (9, 4)])
def test_none_is_left_out(number, num_real, num_quick):
    real, quick = list(range(num_real)), list(range(100, 100 + num_quick))
    assert sorted(deal(real, quick, number)) == real + quick


def test_a_core_is_idle_while_fewer_run_than_there_are(tmp_path):
    loadavg = tmp_path / "loadavg"
    num_cores = len(os.sched_getaffinity(0))
    for num_running in (1, num_cores, num_cores + 1):
        loadavg.write_text(f"0.50 1.20 0.90 {num_running}/345 6789\n")
        assert has_idle_core(loadavg) == (num_running <= num_cores)


def test_alone_they_run_as_they_are_written():
    assert order() == "abcAdBefCD"


@pytest.mark.parametrize("number", [1, 2, 3, 7])
def test_parts_are_all_there_and_of_equal_length(number):
    found = parts(range(5), number)
    assert [n for part in found for n in part] == list(range(5))
    assert max(map(len, found)) - min(map(len, found)) <= 1
