"""One profile from what all workers measured, in the form the timeline reads.

A unit's cost is the median over the workers that ran it at one tensor degree. The costs are those
of the degree that was used first; other degrees become factors of it. Everything else is the median
over the workers that measured it.
"""

from collections.abc import Iterable, Mapping
from statistics import median

from holdfast.plan.plan import Plan
from holdfast.plan.profile import Link, Profile, UnitCost


def merge_profiles(found: Iterable[tuple[int, str, Profile]], plans: Mapping[int, Plan]) -> Profile:
    """From (epoch, worker, profile); `plans` by epoch."""
    ordered = sorted(found, key=lambda report: report[:2])
    profiles = [profile for _, _, profile in ordered]
    by_degree: dict[int, list[Mapping[str, UnitCost]]] = {}
    for epoch, worker, profile in ordered:
        for degree, names in _units_by_degree(plans[epoch], worker).items():
            costs = {name: cost for name, cost in profile.unit.items() if name in names}
            by_degree.setdefault(degree, []).append(costs)
    merged = {degree: _middle_costs(costs) for degree, costs in by_degree.items()}
    base = next(iter(merged.values()), {})
    return Profile(
        source=profiles[0].source if profiles else "measured",
        unit=base,
        tensor={degree: _ratio(costs, base) for degree, costs in merged.items()},
        within_node=_middle_link(profile.within_node for profile in profiles),
        between_nodes=_middle_link(profile.between_nodes for profile in profiles),
        reduce=_middle_link(profile.reduce for profile in profiles),
        action=_middle(profile.action for profile in profiles),
        agree=_middle(profile.agree for profile in profiles),
        update=_middle(profile.update for profile in profiles),
    )


def _units_by_degree(plan: Plan, worker: str) -> dict[int, set[str]]:
    names: dict[int, set[str]] = {}
    for stage, _ in plan.seats.get(worker, ()):
        units = plan.units[stage.first : stage.stop]
        names.setdefault(stage.tensor, set()).update(unit.name for unit in units)
    return names


def _middle_costs(found: Iterable[Mapping[str, UnitCost]]) -> dict[str, UnitCost]:
    by_name: dict[str, list[UnitCost]] = {}
    for costs in found:
        for name, cost in costs.items():
            by_name.setdefault(name, []).append(cost)
    return {
        name: UnitCost(
            median(cost.forward for cost in costs),
            median(cost.backward_input for cost in costs),
            median(cost.backward_weight for cost in costs),
        )
        for name, costs in by_name.items()
    }


def _ratio(costs: Mapping[str, UnitCost], base: Mapping[str, UnitCost]) -> float:
    """How long units take compared to the base, over those that both have."""
    common = [name for name in costs if name in base]
    whole = sum(_total(base[name]) for name in common)
    return sum(_total(costs[name]) for name in common) / whole if whole else 1.0


def _total(cost: UnitCost) -> float:
    return cost.forward + cost.backward_input + cost.backward_weight


def _middle(values: Iterable[float]) -> float:
    """Zero: not measured."""
    return median([value for value in values if value] or [0.0])


def _middle_link(links: Iterable[Link]) -> Link:
    known = [link for link in links if link != Link()]
    return Link(_middle(link.latency for link in known), _middle(link.bandwidth for link in known))
