"""The helpers of the benchmarks. They are no package, so the file is loaded by its path."""

import importlib.util
import itertools
import json
import math
import random
import statistics
import sys
from pathlib import Path
from types import ModuleType

import pytest


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_common", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


common = load(Path(__file__).parents[2] / "bench" / "_common.py")


def test_options():
    args = common.parse_args("doc", ["--quick", "--json", "out.json"])
    assert args.quick
    assert args.json == Path("out.json")


def test_own_options_are_added():
    def own(parser):
        parser.add_argument("--devices", type=int, default=8)

    assert common.parse_args("doc", ["--devices", "16"], own).devices == 16


def test_variants_alternate_and_take_turns_at_being_first():
    calls = []
    variants = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    common.interleave(variants, 3, warmup=1)
    assert "".join(calls) == "ab" + "ab" + "ba" + "ab"


def test_seconds_come_from_the_clock_and_exclude_the_warmup():
    now = itertools.count()
    seconds = common.interleave({"a": lambda: None, "b": lambda: next(now)}, 2, clock=now.__next__)
    assert seconds == {"a": [1, 1], "b": [2, 2]}


def test_ratios_are_paired_by_round():
    # A machine that is ten times slower in round two changes nothing.
    ratios = common.compare([2.0, 20.0, 2.0], [1.0, 10.0, 1.0])
    assert ratios.median == 2.0


def test_too_few_rounds_bound_nothing():
    assert common.median_bounds([1.0] * 4) == (-math.inf, math.inf)
    assert common.median_bounds([5.0, 1.0, 2.0, 4.0, 3.0]) == (1.0, 5.0)


def test_bounds_hold_as_often_as_they_say():
    draw = random.Random(7)
    tries = 2000
    above = sum(
        common.median_bounds([draw.expovariate(1.0) for _ in range(21)])[1] < math.log(2)
        for _ in range(tries)
    )
    assert above / tries < 0.06


def test_bounds_enclose_the_median_and_tighten_with_more_rounds():
    draw = random.Random(8)
    few = [draw.gauss(1.0, 0.1) for _ in range(10)]
    many = few + [draw.gauss(1.0, 0.1) for _ in range(190)]
    for values in (few, many):
        low, high = common.median_bounds(values)
        assert low <= statistics.median(values) <= high
    widths = [high - low for low, high in map(common.median_bounds, (few, many))]
    assert widths[1] < widths[0]


def test_a_variant_against_itself_has_ratio_one():
    now = itertools.count()
    band = common.aa_band(lambda: None, 9, clock=now.__next__)
    assert (band.low, band.median, band.high) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("value", "at_most", "met"),
    [(1.0, True, True), (1.1, True, False), (1.0, False, True), (0.9, False, False)],
)
def test_goals(value, at_most, met):
    assert common.Goal("x", value, 1.0, at_most=at_most).met is met


def test_too_few_rounds_meet_no_goal():
    assert not common.Goal("x", math.inf, math.inf).met


@pytest.mark.parametrize("at_most", [True, False])
def test_not_a_number_misses_every_goal(at_most):
    assert not common.Goal("x", math.nan, 1.0, at_most=at_most).met


def test_table(capsys):
    common.print_table("sizes", [{"name": "small", "ms": 1.23456}, {"name": "big", "ms": 12}])
    out = capsys.readouterr().out
    assert "sizes" in out
    assert "1.235" in out


def test_finish_ends_with_1_and_writes_the_numbers(tmp_path):
    goals = [common.Goal("cost", 0.5, 1.0, "%"), common.Goal("stall", 0.4, 0.3, "s")]
    path = tmp_path / "out.json"
    with pytest.raises(SystemExit) as ended:
        common.finish(goals, path, {"rounds": 5})
    assert ended.value.code == 1
    record = json.loads(path.read_text())
    assert [goal["met"] for goal in record["goals"]] == [True, False]
    assert record["measured"] == {"rounds": 5}


def test_finish_ends_with_0_when_all_goals_are_met(capsys):
    with pytest.raises(SystemExit) as ended:
        common.finish([common.Goal("cost", 0.5, 1.0, "%")])
    assert ended.value.code == 0
    assert "met    cost: 0.5 % (goal <= 1 %)" in capsys.readouterr().out
