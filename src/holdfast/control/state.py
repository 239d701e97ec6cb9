"""Where a worker is, in full. A worker tells it whenever something in it changes; its agent keeps
the last one and tells all of them on every connect. So nothing is known from a message that could
have been lost: the coordinator acts on states, not on events.
"""

from holdfast.control.message import Message
from holdfast.control.report import Member, WorkerReport


class WorkerState(Message, frozen=True, kw_only=True):
    member: Member
    said_hello: bool = False
    """False: the process was started and has not said anything yet."""
    epoch: int = 0
    """The last order it has entered, be it as one who is left out."""
    round: int = 0
    """The highest freeze it has answered."""
    is_frozen: bool = False
    pending: int = 0
    """The planned change it knows of and has not entered."""
    voided: int = 0
    """The highest planned change it will never enter any more."""
    lineage: int = 0
    version: int = 0
    entered_at: int = 0
    """The version at which it entered `epoch`."""
    broken: str = ""
    """Why it cannot go on in `epoch`, or, while it is frozen, cannot enter the order that ends its
    round; empty: it goes on.
    """
    blamed: tuple[str, ...] = ()
    """The workers it lost, where it knows."""
    is_done: bool = False
    """It has finished the last step and waits for leave."""
    report: WorkerReport | None = None
    """Of `round`, while it is frozen."""
