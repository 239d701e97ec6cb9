"""What a file holds, as one number: computed once, and again only when the file has changed.

The number is that of the content, so a copy in another place has the same. A table in the cache
remembers it by path, size, time of change and inode, as version control does.
"""

from pathlib import Path

import msgspec
import xxhash

from holdfast.data.store import write_whole

TABLE = "fingerprints.json"
_BLOCK_BYTES = 4 << 20
_KEPT = 100_000
"""Files that the table remembers, the newest."""


class _Known(msgspec.Struct, frozen=True, array_like=True):
    size: int
    changed_ns: int
    inode: int
    digest: str


class Fingerprints:
    def __init__(self, cache: Path) -> None:
        self._path = cache / TABLE
        self._known = self._load()
        self._is_new = False

    def _load(self) -> dict[str, _Known]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, _Known])
        except (OSError, msgspec.DecodeError):
            return {}  # it only saves time

    def of(self, file: Path) -> str:
        """Its size and the digest of its content."""
        name, stat = str(file.resolve()), file.stat()
        known = self._known.get(name)
        found = (stat.st_size, stat.st_mtime_ns, stat.st_ino)
        if known is None or (known.size, known.changed_ns, known.inode) != found:
            known = _Known(*found, _digest(file))
            self._known[name] = known
            self._is_new = True
        return f"{known.size}-{known.digest}"

    def save(self) -> None:
        """Where several processes do, the last one counts: the others compute again."""
        if self._is_new:
            kept = dict(list(self._known.items())[-_KEPT:])
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, msgspec.json.encode(kept))
            self._is_new = False


def _digest(file: Path) -> str:
    digest = xxhash.xxh3_128()
    with file.open("rb") as opened:
        while block := opened.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
