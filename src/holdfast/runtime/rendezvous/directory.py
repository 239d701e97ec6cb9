"""A rendezvous in a directory that all hosts share.

A record is a file of its own, named by its number. It is written aside and synced, and gets its
name by `link`, which fails where there is one of that name: that is the compare-and-swap, also on
NFS. Records are never removed while the job lives, since a number that is free again could be taken
twice.
"""

import os
import re
import secrets
from pathlib import Path

from holdfast.errors import HoldfastError

SECRET = "secret"
_NUMBER = re.compile(r"\d{8}")


class DirectoryRendezvous:
    """(Rendezvous)"""

    def __init__(self, folder: Path, *, create: bool = False) -> None:
        if create:
            folder.mkdir(parents=True, exist_ok=True)
        if not folder.is_dir():
            raise HoldfastError(f"dir:{folder} is not there: start `holdfast run` first")
        self._folder = folder.absolute()

    def records(self, sequence: str, after: int = 0) -> list[bytes]:
        folder = self._folder / sequence
        later = [number for number in self._numbers(sequence) if number > after]
        return [(folder / _name(number)).read_bytes() for number in sorted(later)]

    def last(self, sequence: str) -> tuple[int, bytes]:
        number = max(self._numbers(sequence), default=0)
        return number, (self._folder / sequence / _name(number)).read_bytes() if number else b""

    def _numbers(self, sequence: str) -> list[int]:
        """OSError where the directory itself is away: that does not mean that nothing is there."""
        try:
            names = os.listdir(self._folder / sequence)
        except FileNotFoundError:
            os.stat(self._folder)
            return []
        return [int(name) for name in names if _NUMBER.fullmatch(name)]

    def has(self, sequence: str, number: int) -> bool:
        if (self._folder / sequence / _name(number)).exists():
            return True
        os.stat(self._folder)
        return False

    def append(self, sequence: str, number: int, record: bytes) -> bool:
        folder = self._folder / sequence
        folder.mkdir(exist_ok=True)
        aside = folder / f"{secrets.token_hex(8)}.part"
        try:
            write_synced(aside, record)
            os.link(aside, folder / _name(number))
        except FileExistsError:
            return False
        finally:
            aside.unlink(missing_ok=True)
        _sync_folder(folder)
        return True

    def put(self, name: str, value: bytes) -> None:
        aside = self._folder / f"{name}.{secrets.token_hex(8)}.part"
        write_synced(aside, value)
        aside.replace(self._folder / name)

    def get(self, name: str) -> bytes:
        try:
            return (self._folder / name).read_bytes()
        except FileNotFoundError:
            os.stat(self._folder)
            return b""

    def secret(self) -> str:
        return self.get(SECRET).decode("ascii").strip()

    def keep_secret(self, secret: str) -> None:
        self.put(SECRET, secret.encode())


def _name(number: int) -> str:
    return f"{number:08}"


def write_synced(path: Path, data: bytes) -> None:
    """A new file, for its owner alone."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
