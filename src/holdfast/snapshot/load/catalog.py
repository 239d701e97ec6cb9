"""Verified reading of one version: every byte fits its checksum, wherever it had to come from.

Per chunk the order is: this node's memory, other nodes' memory, parity. A chunk that does not fit,
or a source that fails, is noted and the next one is asked; the list of sources is finite and none
is asked twice for a chunk.
"""

from collections.abc import Iterable, Iterator
from zlib import crc32

import msgspec
import xxhash

from holdfast.snapshot.layout import LayoutEntry
from holdfast.snapshot.manifest import ArenaPlace, Holding, Manifest
from holdfast.snapshot.memory.sources import Source, Unreadable
from holdfast.snapshot.parity import decode

LOCAL = "local memory"
PEER = "peer memory"
PARITY_SOURCE = "parity"
STORAGE = "storage"
ORIGINS = (LOCAL, PEER, PARITY_SOURCE, STORAGE)


class BytesLost(Exception):
    """No source has these bytes any more."""


class Fetched(msgspec.Struct):
    """Bytes that fit their checksums."""

    data: memoryview
    origin: str
    node: str
    complaints: list[str]
    """Why sources before it in the order were not used."""
    lenders: list[tuple[Source, ArenaPlace]]
    """Whose memory `data` is, to be confirmed once it has been copied."""
    in_place: bool = False
    """They are where the caller wanted them."""


class Catalog:
    """One version of the cluster's memory, as seen from the node `here`."""

    def __init__(self, holding: Holding, sources: Iterable[Source], here: str = "") -> None:
        self.holding, self.here = holding, here
        self.version = holding.version
        self._sources = {source.node: source for source in sources}
        self.entries: dict[tuple[str, str], list[LayoutEntry]] = {}
        """What can be read, by (tensor, kind)."""
        for entry in (*holding.entries.values(), *holding.computable().values()):
            self.entries.setdefault((entry.tensor, entry.kind), []).append(entry)

    def fetch(
        self, entry: LayoutEntry, start: int = 0, stop: int = -1, into: memoryview | None = None
    ) -> Fetched:
        """Bytes `start` .. `stop - 1` of an entry; BytesLost if no source can give them. `into`:
        where they may be put, as a source of another host has to put them somewhere.
        """
        stop = entry.num_bytes if stop < 0 else stop
        chunk_bytes = self._chunk_bytes
        first, last = start // chunk_bytes, -(-stop // chunk_bytes)
        if start % chunk_bytes or stop != min(last * chunk_bytes, entry.num_bytes):
            into = None  # whole chunks are read, to be verified
        complaints: list[str] = []
        for manifest in self._places(entry):
            try:
                found = self._from_place(entry, manifest, first, last, into)
            except Unreadable as error:
                complaints.append(str(error))
                continue
            found.complaints = complaints
            found.data = found.data[start - first * chunk_bytes : stop - first * chunk_bytes]
            return found
        return self._piece_by_piece(entry, range(first, last), start, stop, complaints)

    def confirm(self, fetched: Fetched) -> None:
        """To be called once fetched bytes have been copied; Lost if they changed meanwhile."""
        for source, place in fetched.lenders:
            try:
                source.confirm(place)
            except Unreadable as error:
                raise BytesLost(str(error)) from None

    @property
    def _chunk_bytes(self) -> int:
        return self.holding.manifests[0].layout.chunk_bytes

    def _places(self, entry: LayoutEntry) -> list[Manifest]:
        """Local first; the others in an order that differs from entry to entry, so that not all
        readers turn to the same node.
        """
        places = self.holding.places.get(entry.key, [])
        local = [manifest for manifest in places if manifest.node == self.here]
        others = [manifest for manifest in places if manifest.node != self.here]
        turn = crc32(entry.key.encode()) % len(others) if others else 0
        return [*local, *others[turn:], *others[:turn]]

    def _from_place(
        self,
        entry: LayoutEntry,
        manifest: Manifest,
        first: int,
        last: int,
        into: memoryview | None = None,
    ) -> Fetched:
        size = self._chunk_bytes
        stop = min(last * size, entry.num_bytes)
        data = self._read(manifest, entry.key, first * size, stop, into)
        for number in range(first, last):
            chunk = data[(number - first) * size : (number - first + 1) * size]
            check_chunk(chunk, manifest.checksums[entry.key][number], entry, number, manifest.node)
        origin = LOCAL if manifest.node == self.here else PEER
        lender = (self._sources[manifest.node], manifest.place)
        return Fetched(data, origin, manifest.node, [], [lender], data is into)

    def _read(
        self,
        manifest: Manifest,
        key: str,
        start: int,
        stop: int,
        into: memoryview | None = None,
    ) -> memoryview:
        source = self._sources.get(manifest.node)
        if source is None:
            raise Unreadable(f"{manifest.node} cannot be reached")
        try:
            data = source.read(manifest.place, key, start, stop, into)
        except OSError as error:  # a connection that broke is one source less, no more
            raise Unreadable(f"{manifest.node}: {error}") from None
        if data.nbytes != stop - start:
            raise Unreadable(f"{manifest.node} gave {data.nbytes} bytes of {stop - start}")
        return data

    def _piece_by_piece(
        self, entry: LayoutEntry, numbers: range, start: int, stop: int, complaints: list[str]
    ) -> Fetched:
        """No place has all of it: every chunk from wherever it can be had."""
        size = self._chunk_bytes
        buffer = memoryview(bytearray(stop - start))
        origins: dict[tuple[str, str], None] = {}
        for number in numbers:
            found = self._one_chunk(entry, number, complaints)
            low, high = max(start, number * size), min(stop, (number + 1) * size)
            buffer[low - start : high - start] = found.data[low - number * size :][: high - low]
            self.confirm(found)
            origins[found.origin, found.node] = None
        origin = max((origin for origin, _ in origins), key=ORIGINS.index, default=LOCAL)
        node = ", ".join(dict.fromkeys(node for _, node in origins))
        return Fetched(buffer, origin, node, complaints, [])

    def _one_chunk(self, entry: LayoutEntry, number: int, complaints: list[str]) -> Fetched:
        for manifest in self._places(entry):
            try:
                return self._from_place(entry, manifest, number, number + 1)
            except Unreadable as error:
                complaints.append(str(error))
        try:
            return self._from_parity(entry, number)
        except Unreadable as error:
            told = "; ".join(dict.fromkeys([*complaints, str(error)]))
            raise BytesLost(f"chunk {number} of {entry.key!r}, {self.version}: {told}") from None

    def _from_parity(self, entry: LayoutEntry, number: int) -> Fetched:
        manifest, row = self.holding.rows.get(entry.key, (None, None))
        if manifest is None or row is None:
            raise Unreadable("no parity protects it")
        size = self._chunk_bytes
        start, stop = number * size, min((number + 1) * size, entry.num_bytes)

        def read(key: str, low: int, high: int) -> memoryview:
            if key == row.key:
                return self._read(manifest, key, low, high)
            return self._read_raw(key, low, high)

        data = decode(row, entry.key, start, stop, read)
        wanted = manifest.checksums[entry.key][number]
        check_chunk(data, wanted, entry, number, f"parity on {manifest.node}")
        return Fetched(data, PARITY_SOURCE, manifest.node, [], [])

    def _read_raw(self, key: str, start: int, stop: int) -> memoryview:
        """Not verified: what is computed from it will be."""
        entry = self.holding.entries.get(key)
        complaints: list[str] = []
        for manifest in self._places(entry) if entry is not None else ():
            try:
                return self._read(manifest, key, start, stop)
            except Unreadable as error:
                complaints.append(str(error))
        raise Unreadable("; ".join([f"parity needs {key!r}, which is gone too", *complaints]))


def check_chunk(data: memoryview, wanted: int, entry: LayoutEntry, number: int, where: str) -> None:
    found = xxhash.xxh3_64_intdigest(data)
    if found != wanted:
        raise Unreadable(
            f"{where}: chunk {number} of {entry.key!r} has checksum {found:016x}, "
            f"sealed was {wanted:016x}"
        )


def verify(catalog: Catalog) -> Iterator[str]:
    """One line for every chunk in memory, of entries and rows, that does not fit."""
    for manifest in catalog.holding.manifests:
        for entry in manifest.layout.entries:
            yield from _wrong_chunks(catalog, manifest, entry)


def _wrong_chunks(catalog: Catalog, manifest: Manifest, entry: LayoutEntry) -> Iterator[str]:
    for number in range(manifest.layout.num_chunks(entry)):
        try:
            catalog._from_place(entry, manifest, number, number + 1)
        except Unreadable as error:
            yield str(error)
