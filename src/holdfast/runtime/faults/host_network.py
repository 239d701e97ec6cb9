"""Trouble with this host's network for a while: cut off, as by a pulled cable, or slow, as over a
bad one.

HOST_CUT: the kernel drops packets from and to the other hosts of the job, and refuses none. Others
are not touched, so that operators still reach the host. HOST_SLOW: what leaves by the interfaces
that lead to those hosts does so at a limited rate, what others get included; afterwards these have
the kernel's usual queues.

A shell of its own ends it, which lives on when the agent is killed: a host that stays cut would
be of no use to any job. It needs root, and iptables or tc.
"""

import asyncio
import logging
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from holdfast.runtime.faults.kinds import Fault

AGAIN_S = 0.2
_LOG = logging.getLogger(__name__)
_CUT = """
change() {
    if [ "$1" = begin ]; then rule=-I; else rule=-D; fi
    for address in $ADDRESSES; do
        case $address in *:*) table=ip6tables ;; *) table=iptables ;; esac
        $table -w "$rule" INPUT -s "$address" -j DROP
        $table -w "$rule" OUTPUT -d "$address" -j DROP
    done
}
"""
_SLOW = """
interfaces=$(for address in $ADDRESSES; do ip -o route get "$address"; done |
    sed -n 's/.* dev \\([^ ]*\\).*/\\1/p' | grep -vx lo | sort -u)
[ -n "$interfaces" ] || { echo "no interface leads to $ADDRESSES" >&2; exit 1; }
change() {
    for interface in $interfaces; do
        if [ "$1" = begin ]; then
            tc qdisc replace dev "$interface" root tbf rate "${RATE_MBIT}mbit" burst 32kb latency 1s
        else
            tc qdisc del dev "$interface" root
        fi
    done
}
"""
_FOR_A_WHILE = """
trap 'trap "" TERM INT HUP; change end' EXIT
trap 'exit 0' TERM INT HUP
change begin || exit 1
sleep "$DURATION_S"
"""
_SCRIPTS = {"HOST_CUT": ("iptables", _CUT), "HOST_SLOW": ("tc", _SLOW)}
"""The program that each needs, and what to do with it."""


def why_not(kind: str, addresses: Sequence[str]) -> str:
    """Why it cannot be done here; empty: it can."""
    program, _ = _SCRIPTS[kind]
    if not addresses:
        return "the job has no other host"
    if os.geteuid() != 0:
        return "that needs root"
    return "" if shutil.which(program) is not None else f"there is no {program} here"


class HostTrouble:
    def __init__(self, fault: Fault, addresses: Sequence[str]) -> None:
        """Begins at once. `addresses`: of the other hosts."""
        self._fault, self._addresses = fault, addresses
        self._shell: asyncio.subprocess.Process | None = None
        self._is_ended = False
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        fault, names = self._fault, ", ".join(self._addresses)
        if why := why_not(fault.kind, self._addresses):
            _LOG.warning("%s was not done: %s", fault.kind, why)
            return
        variables = {
            "ADDRESSES": " ".join(self._addresses),
            "DURATION_S": f"{fault.duration_s:g}",
            "RATE_MBIT": f"{fault.rate_mbit:g}",
        }
        shell = await asyncio.create_subprocess_exec(
            *("sh", "-c", _SCRIPTS[fault.kind][1] + _FOR_A_WHILE),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=os.environ | variables,
            start_new_session=True,
        )
        self._shell = shell
        if self._is_ended:
            self._terminate()
        _LOG.warning("%s: between this host and %s for %g s", fault.kind, names, fault.duration_s)
        _, said = await shell.communicate()
        line = (said.decode(errors="replace").splitlines() or ["no more is known"])[-1]
        how = f": {line}" if shell.returncode else ""
        _LOG.warning("%s: not any more%s", fault.kind, how)

    async def end(self) -> None:
        """Sooner than it would by itself."""
        self._is_ended = True
        while not self._task.done():  # a process that is just being forked misses a signal
            self._terminate()
            await asyncio.wait({self._task}, timeout=AGAIN_S)

    def _terminate(self) -> None:
        """The shell, and what it waits for: only then it goes on, and undoes what it has done."""
        if self._shell is not None and self._shell.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._shell.pid, signal.SIGTERM)
