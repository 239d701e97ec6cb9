"""Schedules by name."""

import pytest

from holdfast.errors import HoldfastError
from holdfast.schedule.registry import SCHEDULES, priced_rule, rule_of


def test_every_schedule_is_found_by_its_name() -> None:
    assert list(SCHEDULES) == ["gpipe", "1f1b", "interleaved", "zero-bubble", "explicit"]
    for name in SCHEDULES:
        assert rule_of(name).name == name


def test_the_planner_can_price_every_schedule() -> None:
    for rule in SCHEDULES.values():
        priced = priced_rule(rule.planned_as)
        assert priced.planned_as == priced.name
        if priced.split_variant:
            assert rule_of(priced.split_variant).splits_backward


def test_an_unknown_name_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(HoldfastError, match="'dual' is unknown; known: gpipe, 1f1b"):
        rule_of("dual")


def test_a_schedule_without_closed_forms_says_what_prices_it() -> None:
    with pytest.raises(HoldfastError, match=r"interleaved has no closed forms.*priced as 1f1b"):
        priced_rule("interleaved")
