"""What the detector says, and in which words.

slow        a worker or path takes `factor` times as long as its peers and its own past
recovered   it is back
suspect     the step is slower than the work explains; the named ones explain it best
common      everything is slower at once: not a matter of one device
cleared     a probe found nothing wrong with a suspect
behind      progress moves, but much slower than predicted
hung        heartbeats arrive, progress does not move
dead        no heartbeat, or an exit was reported
"""

import msgspec

from holdfast.detect.probe import ProbeOrder

SLOW, RECOVERED, SUSPECT, COMMON, CLEARED = "slow", "recovered", "suspect", "common", "cleared"
BEHIND, HUNG, DEAD = "behind", "hung", "dead"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    who: tuple[str, ...]
    """Workers (`n0.g1`) or paths (`n0.g1>n1.g1`); several where they cannot be told apart yet."""
    factor: float = 1.0
    """How many times longer than predicted."""
    confidence: float = 1.0
    step: int = 0
    reason: str
    probe: ProbeOrder | None = None
    """What to run to be sure; None where nothing is left to ask."""


def path_name(members: tuple[str, ...]) -> str:
    """`n0.g1>n1.g1`: a message, or a ring of more."""
    return ">".join(members)


def path_members(name: str) -> tuple[str, ...]:
    return tuple(name.split(">"))


def percent(ratio: float) -> str:
    return f"{100 * ratio:.3g} %"


def name_some(names: tuple[str, ...], limit: int = 4) -> str:
    """The first few, and how many more."""
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
