"""The machine apart from its GPUs: cores, memory, limits, sockets, clock, disk.

Every check is a function of what was found, so that it can be tried with any machine.
"""

import ctypes
import os
import platform
import resource
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from holdfast.cli.doctor_check import Check, failed, ok, warned
from holdfast.observe.quantities import count, format_bytes
from holdfast.observe.run_directory import nearest_folder
from holdfast.runtime.launch.resources import available_memory, free_bytes
from holdfast.snapshot.memory.arena import SHARED_MEMORY
from holdfast.snapshot.memory.leftovers import find_left
from holdfast.snapshot.provision import least_descriptors, wanted_descriptors

_MIB, _GIB = 2**20, 2**30
NUM_WORKERS = 8
"""What limits are compared with where no job is named."""
LEAST_PYTHON = (3, 11)
SMALL_SHARED, SMALL_DISK, LEAST_DISK, SMALL_MEMORY = 256 * _MIB, 10 * _GIB, 256 * _MIB, 2 * _GIB
FEW_PORTS, FEW_PROCESSES = 1000, 1024
SLOW_SYNC_S = 0.5
_CGROUP = Path("/sys/fs/cgroup")
_UNSYNCHRONISED = 5
"""What adjtimex returns then."""


def checks(folder: Path) -> Iterator[Check]:
    yield check_python(platform.python_version(), platform.system())
    yield check_cores(len(os.sched_getaffinity(0)), os.cpu_count() or 1)
    yield check_memory(available_memory())
    yield check_shared_memory(free_bytes(SHARED_MEMORY), str(SHARED_MEMORY))
    yield check_left_memory()
    yield check_descriptors(*resource.getrlimit(resource.RLIMIT_NOFILE))
    yield check_processes(process_limit())
    yield check_address_space(resource.getrlimit(resource.RLIMIT_AS)[0])
    yield check_loopback()
    yield check_ports(port_range())
    yield check_clock(time.time(), newest_file_s(), adjtimex_state())
    yield check_disk(folder, free_bytes(nearest_folder(folder)))


def check_python(version: str, system: str) -> Check:
    if system != "Linux":
        return failed("python", f"{version} on {system}", "Linux is needed", "run it there")
    if tuple(map(int, version.split(".")[:2])) < LEAST_PYTHON:
        return failed("python", version, "3.11 or newer is needed", "make a newer environment")
    return ok("python", f"{version} ({sys.prefix})")


def check_cores(usable: int, there: int) -> Check:
    found = f"{usable} of {there} usable" if usable < there else count(there, "core")
    if usable < 2:
        return warned(
            "cores", found, "2 or more let workers run beside each other", "allow this process more"
        )
    return ok("cores", found)


def check_memory(available: int) -> Check:
    found = f"{format_bytes(available)} available"
    if available < SMALL_MEMORY:
        needed = f"{format_bytes(SMALL_MEMORY)} are little for a few workers"
        return warned("memory", found, needed, "end other programs, or raise the container's limit")
    return ok("memory", found)


def check_shared_memory(free: int, folder: str) -> Check:
    found = f"{format_bytes(free)} free at {folder}"
    if free < SMALL_SHARED:
        return warned(
            "shared memory",
            found,
            f"snapshots of a small job need {format_bytes(SMALL_SHARED)}, or they lie on disk",
            "docker run --shm-size 8g, or mount -o remount,size=8g /dev/shm",
        )
    return ok("shared memory", found)


def check_left_memory() -> Check:
    left = find_left()
    if not left:
        return ok("left memory", "none of ended runs")
    size = format_bytes(sum(found.num_bytes for found in left))
    return warned(
        "left memory",
        f"{size} of {count(len(left), 'ended run')}",
        "nothing holds it but a run that may go on",
        "`holdfast clean` lists it, `holdfast clean --yes` removes it",
    )


def check_descriptors(soft: int, hard: int) -> Check:
    least, wanted = least_descriptors(NUM_WORKERS), wanted_descriptors(NUM_WORKERS)
    limit = hard if hard != resource.RLIM_INFINITY else max(soft, wanted)
    found = f"{soft} open files, may be raised to {_limit(hard)}"
    remedy = f"ulimit -n {wanted}, or LimitNOFILE of the service"
    if limit < least:
        needed = f"{NUM_WORKERS} workers need {least} at least"
        return failed("descriptors", found, needed, remedy)
    if limit < wanted:
        needed = f"{NUM_WORKERS} workers need {wanted} to recover"
        return warned("descriptors", found, needed, remedy)
    return ok("descriptors", found)


def _limit(value: int) -> str:
    return "any number" if value == resource.RLIM_INFINITY else str(value)


def process_limit() -> int:
    """The smallest of those that hold here; -1: none."""
    found = [resource.getrlimit(resource.RLIMIT_NPROC)[0]]
    with suppress(OSError, ValueError):
        found.append(int((_CGROUP / "pids.max").read_text()))
    return min((limit for limit in found if limit != resource.RLIM_INFINITY), default=-1)


def check_processes(limit: int) -> Check:
    if 0 <= limit < FEW_PROCESSES:
        return warned(
            "processes",
            f"{limit} processes and threads",
            f"a job of {NUM_WORKERS} workers may need {FEW_PROCESSES}",
            "ulimit -u, or docker run --pids-limit",
        )
    return ok("processes", "not limited" if limit < 0 else f"{limit} processes and threads")


def check_address_space(limit: int) -> Check:
    if limit == resource.RLIM_INFINITY:
        return ok("address space", "not limited")
    return warned(
        "address space",
        f"limited to {format_bytes(limit)}",
        "torch maps far more than it uses",
        "ulimit -v unlimited",
    )


def check_loopback(host: str = "127.0.0.1") -> Check:
    """Do a connection and some bytes get through?"""
    try:
        with closing(socket.create_server((host, 0))) as server:
            server.settimeout(2)
            with closing(socket.create_connection(server.getsockname()[:2], 2)) as one:
                other, _ = server.accept()
                with closing(other):
                    one.sendall(b"?")
                    other.settimeout(2)
                    answer = other.recv(1)
    except OSError as error:
        why = error.strerror or str(error)
        return failed(
            "loopback",
            f"{host}: {why}",
            "workers, agents and the coordinator talk over it",
            "ip link set lo up; look for firewall rules on lo",
        )
    return ok("loopback", f"{host} connects" if answer == b"?" else f"{host} answers {answer!r}")


def port_range() -> tuple[int, int]:
    try:
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="utf-8")
    except OSError:
        return 32768, 60999
    low, high = map(int, text.split())
    return low, high


def check_ports(ports: tuple[int, int]) -> Check:
    low, high = ports
    if high - low < FEW_PORTS:
        return warned(
            "ports",
            f"{low} to {high}",
            f"groups of workers take up to {FEW_PORTS} at a time",
            "sysctl net.ipv4.ip_local_port_range='32768 60999'",
        )
    return ok("ports", f"{low} to {high} for connections")


def newest_file_s() -> float:
    """When this package was written to disk: no clock should be before that."""
    return Path(__file__).stat().st_mtime


def adjtimex_state() -> int:
    """What the kernel says about its clock; -1: it does not say."""
    with suppress(OSError, AttributeError):
        return int(ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(512)))
    return -1


def check_clock(now_s: float, written_s: float, state: int) -> Check:
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_s))
    if now_s < written_s - 86_400:
        return warned(
            "clock",
            shown,
            f"these files were written {time.strftime('%Y-%m-%d', time.gmtime(written_s))}",
            "set the clock: names of runs, journals and certificates have its times",
        )
    synchronised = {-1: "", _UNSYNCHRONISED: ", not synchronised"}.get(state, ", synchronised")
    return ok("clock", shown + synchronised)


def check_disk(folder: Path, free: int) -> Check:
    found = f"{format_bytes(free)} free at {folder}"
    if free < LEAST_DISK:
        return failed(
            "disk", found, f"a run needs {format_bytes(LEAST_DISK)} at least", "free some, or cd"
        )
    try:
        seconds = sync_time_s(folder)
    except OSError as error:
        why = f"{folder}: {error.strerror}"
        return failed("disk", why, "run directories are written here", "cd where you may write")
    found += f", {1000 * seconds:.0f} ms to sync"
    if free < SMALL_DISK:
        needed = f"checkpoints of a small model take more than {format_bytes(SMALL_DISK)}"
        return warned("disk", found, needed, "set job.run_dir to a larger disk")
    if seconds > SLOW_SYNC_S:
        needed = f"decisions are synced before they count: {1000 * SLOW_SYNC_S:.0f} ms at most"
        return warned("disk", found, needed, "set job.run_dir to a local disk")
    return ok("disk", found)


def sync_time_s(folder: Path) -> float:
    """Of one small file, as the journal does it."""
    path = folder / f".holdfast-doctor-{os.getpid()}"
    began = time.monotonic()
    try:
        with path.open("wb") as file:
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
    finally:
        path.unlink(missing_ok=True)
    return time.monotonic() - began
