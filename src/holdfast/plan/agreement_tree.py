"""Over which groups workers agree: one of all of them, or, where they are many, a tree.

A group connects each of its members with every other one, and it is made anew when it loses one:
with one group of all, each loss concerns every worker. In a tree the workers of a few nodes form a
group, the first ones of some of these another, and so on. A loss concerns the groups of the one
that is lost: its own, and, where it was the first, the one above.

Which nodes belong together follows from their numbers, not from who else is there: so all other
groups stay the same when workers come and go.
"""

from collections.abc import Sequence

from holdfast.plan.workers import parse_worker

MAX_FLAT = 16
"""Workers: up to here one group is quicker than a tree."""
NODES_OF_A_LEAF, FAN_OUT = 4, 16


def agreement_groups(workers: Sequence[str], max_flat: int = 0) -> tuple[tuple[str, ...], ...]:
    """From the leaves to the root. The first member of a group is in the next one above.
    `max_flat` 0: MAX_FLAT.
    """
    level = tuple(workers)
    groups: list[tuple[str, ...]] = []
    span = NODES_OF_A_LEAF
    while len(level) > (max_flat or MAX_FLAT):
        runs: dict[int, list[str]] = {}
        for worker in level:
            runs.setdefault(parse_worker(worker)[0] // span, []).append(worker)
        if len(runs) == 1:
            break  # few nodes with many devices: no level above would have a second member
        groups += [tuple(run) for run in runs.values()]
        level = tuple(run[0] for run in runs.values())
        span *= FAN_OUT
    return (*groups, level)
