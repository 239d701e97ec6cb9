"""The place that all hosts of a job can reach: who coordinates it, and which host is which node.

Everything that decides something is a numbered record, written once. Taking the next number of a
sequence is a compare-and-swap: of two processes that try, one gets it and the other is told so. So
a coordinator that cannot write here, or whose number was taken by another one, decides nothing.

    coordinator   one record per start of a coordinator: its term, and where it listens
    nodes         which host has which node, newest last
    end           one record per run: how it ended

What implements it is chosen by the text before the colon: `dir:` for a directory of a shared file
system. A method that cannot reach the place raises OSError.
"""

from pathlib import Path
from typing import Protocol

import msgspec

from holdfast.errors import HoldfastError
from holdfast.runtime.rendezvous.directory import DirectoryRendezvous

COORDINATOR, NODES, END = "coordinator", "nodes", "end"


class Rendezvous(Protocol):
    def records(self, sequence: str, after: int = 0) -> list[bytes]:
        """Those with a higher number, in order; numbers begin with 1."""

    def append(self, sequence: str, number: int, record: bytes) -> bool:
        """Durably; False: there is one of that number already."""

    def secret(self) -> str:
        """The job's secret, if it lies here; empty: it has to be given otherwise."""

    def keep_secret(self, secret: str) -> None:
        """For the owner of the job alone."""


class CoordinatorAddress(msgspec.Struct, frozen=True, kw_only=True):
    run: int
    host: str
    port: int


class RunEnd(msgspec.Struct, frozen=True, kw_only=True):
    run: int
    outcome: str


class NodeClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A host has a node, from now on."""

    node: str
    host: str
    """What tells hosts apart."""


def open_rendezvous(text: str, *, create: bool = False) -> Rendezvous:
    """`create`: where it may not be there yet."""
    kind, colon, place = text.partition(":")
    if kind != "dir" or not colon or not place:
        raise HoldfastError(
            f"net.rendezvous = {text!r}: expected dir:PATH, a directory that all hosts share"
        )
    return DirectoryRendezvous(Path(place), create=create)


def last_number(rendezvous: Rendezvous, sequence: str) -> int:
    return len(rendezvous.records(sequence))


def find_coordinator(rendezvous: Rendezvous) -> CoordinatorAddress | None:
    """The newest; None: there is none, or its run has ended."""
    found = rendezvous.records(COORDINATOR)
    if not found:
        return None
    newest = msgspec.json.decode(found[-1], type=CoordinatorAddress)
    return None if how_ended(rendezvous, newest.run) else newest


def how_ended(rendezvous: Rendezvous, run: int) -> str:
    """Empty: it has not."""
    ends = (msgspec.json.decode(record, type=RunEnd) for record in rendezvous.records(END))
    return next((end.outcome for end in ends if end.run == run), "")


def announce(rendezvous: Rendezvous, address: CoordinatorAddress) -> None:
    """From now on agents look here. HoldfastError if another coordinator came first."""
    number = last_number(rendezvous, COORDINATOR) + 1
    if not rendezvous.append(COORDINATOR, number, msgspec.json.encode(address)):
        raise HoldfastError("another coordinator has announced itself at the rendezvous meanwhile")


def announce_end(rendezvous: Rendezvous, end: RunEnd) -> None:
    """Once per run: the first one counts."""
    while not how_ended(rendezvous, end.run):
        number = last_number(rendezvous, END) + 1
        rendezvous.append(END, number, msgspec.json.encode(end))
