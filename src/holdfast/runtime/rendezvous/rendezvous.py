"""The place that all hosts of a job can reach: who coordinates it, and which host is which node.

Everything that decides something is a numbered record, written once. Taking the next number of a
sequence is a compare-and-swap: of two processes that try, one gets it and the other is told so. So
a coordinator that cannot write here, or whose number was taken by another one, decides nothing.

    coordinator   one record per start of a coordinator: the number is its term; where it listens
    journal       what coordinators have decided, of all runs (`rendezvous_journal`)
    runs          all that a coordinator needs to know of a run, but for the secret
    nodes         which host has which node, newest last
    end           one record per run: how it ended
    alive         no sequence, but one value that is replaced: a sign of life of the coordinator

What implements it is chosen by the text before the colon: `dir:` for a directory of a shared file
system, `etcd:` for etcd. A method that cannot reach the place raises OSError.
"""

import secrets
from pathlib import Path
from typing import Protocol

import msgspec

from holdfast.errors import HoldfastError
from holdfast.runtime.rendezvous.directory import DirectoryRendezvous
from holdfast.runtime.rendezvous.etcd import EtcdRendezvous

ALIVE = "alive"
COORDINATOR, JOURNAL, RUNS, NODES, END = "coordinator", "journal", "runs", "nodes", "end"


class Superseded(Exception):
    """Another coordinator has taken a higher term: this one decides nothing any more."""


class Rendezvous(Protocol):
    def records(self, sequence: str, after: int = 0) -> list[bytes]:
        """Those with a higher number, in order; numbers begin with 1."""

    def last(self, sequence: str) -> tuple[int, bytes]:
        """The highest number and its record; 0 and nothing: there is none."""

    def has(self, sequence: str, number: int) -> bool:
        """Is there one of that number?"""

    def append(self, sequence: str, number: int, record: bytes) -> bool:
        """Durably; False: there is one of that number already."""

    def put(self, name: str, value: bytes) -> None:
        """Whole, in place of the one before; it need not outlive the place."""

    def get(self, name: str) -> bytes:
        """Empty: there is none."""

    def secret(self) -> str:
        """The job's secret, if it lies here; empty: it has to be given otherwise."""

    def keep_secret(self, secret: str) -> None:
        """For the owner of the job alone."""


class CoordinatorAddress(msgspec.Struct, frozen=True, kw_only=True):
    run: int
    term: int = 0
    host: str
    port: int
    by: str = ""
    """Differs for every process that takes a term."""


class SignOfLife(msgspec.Struct, frozen=True, kw_only=True):
    """Of the coordinator that has this term: who sees it change knows that it lives and decides."""

    term: int = 0
    count: int = 0
    num_nodes: int = 0
    """That it hears."""


class RunEnd(msgspec.Struct, frozen=True, kw_only=True):
    run: int
    outcome: str


class NodeClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A host has a node, from now on."""

    node: str
    host: str
    """What tells hosts apart."""


def is_rendezvous(text: str) -> bool:
    """Or is it a path?"""
    return text.startswith(("dir:", "etcd:"))


def open_rendezvous(text: str, *, create: bool = False) -> Rendezvous:
    """`create`: where it may not be there yet."""
    kind, _, place = text.partition(":")
    if kind == "etcd" and place.startswith("//"):
        return EtcdRendezvous(place.removeprefix("//"))
    if kind != "dir" or not place:
        raise HoldfastError(
            f"net.rendezvous = {text!r}: expected dir:PATH, a directory that all hosts share, or "
            f"etcd://HOST:PORT/NAME"
        )
    return DirectoryRendezvous(Path(place), create=create)


def append_own(rendezvous: Rendezvous, sequence: str, number: int, record: bytes) -> bool:
    """True also where the record was written and only the answer was lost: no other process writes
    the same bytes.
    """
    if rendezvous.append(sequence, number, record):
        return True
    return rendezvous.records(sequence, number - 1)[:1] == [record]


def newest_coordinator(rendezvous: Rendezvous) -> CoordinatorAddress | None:
    """That of the highest term, whatever became of it."""
    number, record = rendezvous.last(COORDINATOR)
    return msgspec.json.decode(record, type=CoordinatorAddress) if number else None


def find_coordinator(rendezvous: Rendezvous) -> CoordinatorAddress | None:
    """The newest; None: there is none, or its run has ended."""
    newest = newest_coordinator(rendezvous)
    return None if newest is None or how_ended(rendezvous, newest.run) else newest


def how_ended(rendezvous: Rendezvous, run: int) -> str:
    """Empty: it has not."""
    ends = (msgspec.json.decode(record, type=RunEnd) for record in rendezvous.records(END))
    return next((end.outcome for end in ends if end.run == run), "")


def take_term(
    rendezvous: Rendezvous, after: int, *, run: int, host: str, port: int
) -> CoordinatorAddress:
    """The term after `after`, for a coordinator that listens there: from now on agents look there.
    Superseded if another process was first.
    """
    taken = CoordinatorAddress(
        run=run, term=after + 1, host=host, port=port, by=secrets.token_hex(8)
    )
    if not append_own(rendezvous, COORDINATOR, taken.term, msgspec.json.encode(taken)):
        raise Superseded(f"term {taken.term} was taken by another coordinator")
    return taken


def sign_of_life(rendezvous: Rendezvous) -> SignOfLife:
    found = rendezvous.get(ALIVE)
    return msgspec.json.decode(found, type=SignOfLife) if found else SignOfLife()


def announce_end(rendezvous: Rendezvous, end: RunEnd) -> None:
    """Once per run: the first one counts."""
    while not how_ended(rendezvous, end.run):
        number = rendezvous.last(END)[0] + 1
        rendezvous.append(END, number, msgspec.json.encode(end))
