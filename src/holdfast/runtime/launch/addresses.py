"""Under which address the other hosts of a job reach this one, and where they meet."""

import fcntl
import socket
import struct

import msgspec

from holdfast.errors import HoldfastError
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.launch.job import Job
from holdfast.runtime.launch.store import resolve
from holdfast.runtime.rendezvous.rendezvous import Rendezvous, open_rendezvous

_GET_ADDRESS = 0x8915  # SIOCGIFADDR


def meet(config: JobConfig) -> Rendezvous | None:
    """None: all nodes are processes of this machine."""
    return open_rendezvous(config.net.rendezvous, create=True) if config.net.rendezvous else None


def with_address(job: Job) -> Job:
    """With the address of this host, where others have to reach it."""
    config = job.config
    if not config.net.rendezvous:
        return job
    given = config.net.address or ("" if _is_loopback(config.job.host) else config.job.host)
    address = own_address(given, config.net.interface)
    section = msgspec.structs.replace(config.job, host=address)
    return msgspec.structs.replace(job, config=msgspec.structs.replace(config, job=section))


def own_address(given: str = "", interface: str = "") -> str:
    """What was said, else that of an interface, else the one that the host's name leads to, else
    the only one there is. HoldfastError where that is not clear.
    """
    found = addresses()
    if given:
        return _resolved(given)
    if interface:
        if interface not in found:
            raise HoldfastError(
                f"net.interface = {interface!r} has no address here; there are {_describe(found)}"
            )
        return found[interface]
    outside = {name: address for name, address in found.items() if not _is_loopback(address)}
    named = _by_name()
    if named in outside.values():
        return named
    if len(outside) > 1:
        raise HoldfastError(
            f"which address do the other hosts use? This one has {_describe(outside)}: say "
            f"net.interface or net.address"
        )
    return next(iter(outside.values()), "127.0.0.1")


def check_address(given: str) -> None:
    """One that other hosts can connect to."""
    if given in ("0.0.0.0", "::"):
        raise HoldfastError(
            f"net.address = {given!r} means all addresses of this host: say the one that the other "
            f"hosts use, or net.interface"
        )


def addresses() -> dict[str, str]:
    """Of all interfaces that have one."""
    found: dict[str, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(sock.fileno(), _GET_ADDRESS, request)
            except OSError:
                continue  # it is down, or has none
            found[name] = socket.inet_ntoa(answer[20:24])
    return found


def _resolved(host: str) -> str:
    try:
        return resolve(host)
    except OSError as error:
        raise HoldfastError(f"net.address = {host!r}: {error.strerror or error}") from None


def _by_name() -> str:
    try:
        return resolve(socket.gethostname())
    except OSError:
        return ""


def _is_loopback(address: str) -> bool:
    return address.startswith("127.")


def _describe(found: dict[str, str]) -> str:
    return ", ".join(f"{address} ({name})" for name, address in found.items()) or "none"
