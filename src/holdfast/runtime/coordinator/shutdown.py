"""The end of a job, in order: workers leave, files are written, agents and the launcher are told.

Agents hang up when they have read that the job is over, and the coordinator waits for that: a
connection that is closed while something in it is unread is reset, and what was sent last is lost
with it. An agent that was not told would look for a coordinator for a long time.
"""

import asyncio
import logging

import msgspec

from holdfast.control.view import CoordinatorView
from holdfast.plan.workers import node_of
from holdfast.runtime.coordinator.disk_watch import DiskWatch
from holdfast.runtime.coordinator.dispatch import Dispatch
from holdfast.runtime.coordinator.job_hosts import JobHosts
from holdfast.runtime.launch.launcher_messages import Ending, LauncherLink
from holdfast.runtime.wire.messages import EndNode

_LOG = logging.getLogger(__name__)

LEAVE_DEADLINE_S = 30.0
STOP_DEADLINE_S = 1.0
"""For workers to leave after a stop: what they had to write is written."""
HANG_UP_S = 2.0
"""For agents to read that the job is over."""


class Shutdown:
    def __init__(
        self,
        view: CoordinatorView,
        dispatch: Dispatch,
        disk: DiskWatch,
        link: LauncherLink,
        hosts: JobHosts | None,
    ) -> None:
        self._view, self._dispatch, self._disk = view, dispatch, disk
        self._link, self._hosts = link, hosts
        self._changed = asyncio.Event()
        self.has_told_agents = False
        """Those that hang up from now on do so because the job is over."""

    def wake(self) -> None:
        """A worker has left, or an agent has hung up."""
        self._changed.set()

    async def run(self, ending: Ending) -> None:
        if ending.outcome != "failed":
            await self._wait_for_workers()
        unwritten = await self._disk.write_last()
        ending = msgspec.structs.replace(ending, unwritten=unwritten)
        if self._hosts is not None:
            # While there are agents that could have a successor do it.
            await self._hosts.write_end(ending)
        is_useless = ending.outcome == "finished" or ending.is_state_lost
        self.has_told_agents = True
        self._dispatch.to_all(EndNode(is_memory_useless=is_useless))
        self._link.send(ending)
        await self._wait_for_agents()
        self._dispatch.close()
        self._link.close()
        await asyncio.sleep(0.01)

    async def _wait_for_workers(self) -> None:
        """They leave by themselves; one that does not goes with its agent."""
        deadline_s = STOP_DEADLINE_S if self._view.is_stopping else LEAVE_DEADLINE_S
        try:
            async with asyncio.timeout(deadline_s):
                while self._is_left():
                    await self._change()
        except TimeoutError:
            names = ", ".join(self._view.finishing)
            _LOG.warning("%s did not leave within %g s", names, deadline_s)

    def _is_left(self) -> bool:
        """Who cannot be reached has no part in it: all that counts is done."""
        nodes = set(self._dispatch.nodes)
        return not nodes.isdisjoint(map(node_of, self._view.finishing))

    async def _wait_for_agents(self) -> None:
        try:
            async with asyncio.timeout(HANG_UP_S):
                while self._dispatch.nodes:
                    await self._change()
        except TimeoutError:
            names = ", ".join(self._dispatch.nodes)
            _LOG.warning("the agents of %s did not hang up within %g s", names, HANG_UP_S)

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
