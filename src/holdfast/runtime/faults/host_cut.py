"""Cut this host off from others for a while, as a pulled cable does: packets are dropped by the
kernel, in both directions, and none is refused.

Only packets from and to the given addresses are, so that operators still reach the host. A
shell of its own ends the cut, which lives on when the agent is killed: a host that stays cut would
be of no use to any job. It needs root and iptables.
"""

import asyncio
import logging
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress

AGAIN_S = 0.2
_LOG = logging.getLogger(__name__)
_SCRIPT = """
rules() {
    for address in $ADDRESSES; do
        case $address in *:*) table=ip6tables ;; *) table=iptables ;; esac
        $table -w "$1" INPUT -s "$address" -j DROP
        $table -w "$1" OUTPUT -d "$address" -j DROP
    done
}
trap 'trap "" TERM INT HUP; rules -D' EXIT
trap 'exit 0' TERM INT HUP
rules -I || exit 1
sleep "$DURATION_S"
"""


def why_not_cut(addresses: Sequence[str]) -> str:
    """Why this host cannot be cut off; empty: it can."""
    if not addresses:
        return "the job has no other host"
    if os.geteuid() != 0:
        return "that needs root"
    return "" if shutil.which("iptables") is not None else "there is no iptables here"


class HostCut:
    def __init__(self, addresses: Sequence[str], duration_s: float) -> None:
        """Begins at once."""
        self._addresses, self._duration_s = addresses, duration_s
        self._shell: asyncio.subprocess.Process | None = None
        self._is_ended = False
        self._task = asyncio.create_task(self._cut())

    async def _cut(self) -> None:
        names = ", ".join(self._addresses)
        if why := why_not_cut(self._addresses):
            _LOG.warning("HOST_CUT was not done: %s", why)
            return
        variables = {"ADDRESSES": " ".join(self._addresses), "DURATION_S": f"{self._duration_s:g}"}
        shell = await asyncio.create_subprocess_exec(
            *("sh", "-c", _SCRIPT),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=os.environ | variables,
            start_new_session=True,
        )
        self._shell = shell
        if self._is_ended:
            self._terminate()
        _LOG.warning("this host is cut off from %s for %g s", names, self._duration_s)
        _, said = await shell.communicate()
        line = (said.decode(errors="replace").splitlines() or ["no more is known"])[-1]
        how = f": {line}" if shell.returncode else ""
        _LOG.warning("this host is not cut off from %s any more%s", names, how)

    async def end(self) -> None:
        """Sooner than it would by itself."""
        self._is_ended = True
        while not self._task.done():  # a process that is just being forked misses a signal
            self._terminate()
            await asyncio.wait({self._task}, timeout=AGAIN_S)

    def _terminate(self) -> None:
        """The shell, and what it waits for: only then it goes on, and undoes its rules."""
        if self._shell is not None and self._shell.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._shell.pid, signal.SIGTERM)
