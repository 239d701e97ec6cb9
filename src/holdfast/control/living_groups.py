"""Which communication groups live on over a recovery.

A group whose members all stay, and in which nothing was broken off, serves as it is: making it anew
costs more than all the rest of a recovery on some devices. All its members have to take it over, or
none: a group that one of them makes anew, and another does not, is waited for without end. So it
is decided here, once, from what all members have told when they had stopped: each names the groups
that are at rest with it, and how many operations it has done in them. A group lives on if all its
members name it and have done the same.
"""

from collections.abc import Iterable

from holdfast.control.report import GroupLevel, WorkerReport


def living_groups(reports: Iterable[WorkerReport]) -> frozenset[str]:
    """By the reports of those who go on."""
    told: dict[str, list[GroupLevel]] = {}
    for report in reports:
        for name, level in report.groups.items():
            told.setdefault(name, []).append(level)
    return frozenset(
        name
        for name, levels in told.items()
        if len(levels) == levels[0].size and all(level == levels[0] for level in levels)
    )
