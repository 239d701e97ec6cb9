"""The schedules there are. A new one is a file that defines a `ScheduleRule` and a line here."""

from holdfast.errors import HoldfastError
from holdfast.schedule.explicit import Explicit
from holdfast.schedule.gpipe import GPipe
from holdfast.schedule.interleaved import Interleaved
from holdfast.schedule.one_f_one_b import OneForwardOneBackward
from holdfast.schedule.rule import PricedSchedule, ScheduleRule
from holdfast.schedule.zero_bubble import ZeroBubble

SCHEDULES: dict[str, ScheduleRule] = {
    rule.name: rule
    for rule in (GPipe(), OneForwardOneBackward(), Interleaved(), ZeroBubble(), Explicit())
}


def rule_of(name: str) -> ScheduleRule:
    """The schedule of this name."""
    try:
        return SCHEDULES[name]
    except KeyError:
        known = ", ".join(SCHEDULES)
        raise HoldfastError(f"schedule {name!r} is unknown; known: {known}") from None


def priced_rule(name: str) -> PricedSchedule:
    """The schedule of this name, with the closed forms that a search needs."""
    rule = rule_of(name)
    if not isinstance(rule, PricedSchedule):
        raise HoldfastError(
            f"schedule {name} has no closed forms: plans of it are priced as {rule.planned_as}"
        )
    return rule
