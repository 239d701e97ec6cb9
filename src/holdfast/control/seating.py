"""Which node a host becomes. Worker names are places in the hardware, so a host keeps its node for
as long as the job lives; only a node whose host is lost is given to another one.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec


class Seating(msgspec.Struct, frozen=True):
    node: str
    """Empty: none."""
    reason: str
    is_final: bool = False
    """Asking again does not help."""


def seat_host(
    host: str,
    wanted: str,
    *,
    nodes: Sequence[str],
    claims: Mapping[str, str],
    taken: Collection[str],
) -> Seating:
    """`claims`: the host that each node had last; `taken`: nodes whose host is there, or was lost
    so recently that it may come back.
    """
    if wanted:
        return _seat_wanted(host, wanted, nodes, claims, taken)
    for node in nodes:
        if claims.get(node) == host and node not in taken:
            return Seating(node, f"{host} is {node} again")
    for node in nodes:
        if node not in claims:
            return Seating(node, f"{host} is {node}")
    for node in nodes:
        if node not in taken:
            return Seating(node, f"{host} takes the place of {claims[node]} as {node}")
    return Seating("", f"all {len(nodes)} nodes of the job have a host")


def _seat_wanted(
    host: str,
    wanted: str,
    nodes: Sequence[str],
    claims: Mapping[str, str],
    taken: Collection[str],
) -> Seating:
    if wanted not in nodes:
        return Seating("", f"the job has no node {wanted}, but {', '.join(nodes)}", is_final=True)
    if wanted in taken:
        return Seating("", f"{wanted} is taken by {claims.get(wanted, 'another host')}")
    return Seating(wanted, f"{host} is {wanted}, as it asks to be")
