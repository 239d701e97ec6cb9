"""`holdfast agent`: this host joins a job, as one of its nodes, until the job is over.

    find      the coordinator's address at the rendezvous; the job may start later than its agents
    ask       over an authenticated connection, which node this host is, and what it needs to know
    run       the same agent as on one machine, with a fork server of its own

The agent is this process. If it ends, the fork server kills the workers; whatever starts
processes on this host may then start it again, and it becomes the same node, with the memory that
is left. Logs, snapshots and times stay on this host. Any agent may have to start the job's next
coordinator (`succeeding`).
"""

import asyncio
import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.errors import HoldfastError
from holdfast.runtime.agent.agent import Agent, AgentSpec
from holdfast.runtime.agent.succeeding import SucceedingFinder
from holdfast.runtime.config.snapshot_options import memory_folder
from holdfast.runtime.launch.addresses import own_address
from holdfast.runtime.launch.fork_server import Forker, ForkServer
from holdfast.runtime.launch.launcher_messages import CoordinatorSpec
from holdfast.runtime.launch.run_record import read_run
from holdfast.runtime.launch.signals import exit_code
from holdfast.runtime.record.logs import open_log, start_logging
from holdfast.runtime.rendezvous.rendezvous import (
    CoordinatorAddress,
    Rendezvous,
    find_coordinator,
    how_ended,
    open_rendezvous,
)
from holdfast.runtime.wire.connection import open_connection
from holdfast.runtime.wire.frames import BY_HOST
from holdfast.runtime.wire.host_messages import JoinRefused, JoinRequest
from holdfast.runtime.wire.messages import NodeGrant
from holdfast.runtime.wire.secret import VARIABLE, ClientProof, ProofFailed
from holdfast.runtime.wire.tls import TlsFiles, client_tls, files_of
from holdfast.snapshot.arena_plan import node_job
from holdfast.snapshot.memory.node_arenas import remove_all

_LOG = logging.getLogger(__name__)

LOOK_AGAIN_S = 0.2
ASK_AGAIN_S = 1.0
ANSWER_S = 10.0
LOGS, TIMES = "logs", "times"


class JoinOptions(msgspec.Struct, frozen=True, kw_only=True):
    rendezvous: str
    address: str = ""
    interface: str = ""
    node: str = ""
    label: str = ""
    """What tells this host apart; empty = its name and address."""
    folder: Path
    """For logs and times of this host; one below it is made for the node."""
    wait_s: float = 600.0
    """For a job that has begun, and a node that is free."""
    leave_after_s: float = 0.0
    """After SIGTERM: a job that is stopped as a whole needs its nodes for the last checkpoint."""
    tls: TlsFiles = TlsFiles()


class HostSeat(NamedTuple):
    """What this host is in which run."""

    grant: NodeGrant
    run: int
    secret: str


def join(options: JoinOptions, show: Callable[[str], object]) -> int:
    """Until the job is over; the exit code."""
    address = own_address(options.address, options.interface)
    with ForkServer(preload=["holdfast.runtime.launch.light_child"]) as fork_server:
        # It gets warm meanwhile; what a coordinator needs is there before it is needed.
        return _join(options, address, fork_server, show)


def _join(
    options: JoinOptions, address: str, fork_server: ForkServer, show: Callable[[str], object]
) -> int:
    rendezvous, secret = meet(options)
    coordinator = find_job(rendezvous, options)
    show(f"found the job's coordinator at {coordinator.host}:{coordinator.port}")
    request = JoinRequest(
        host=options.label or f"{socket.gethostname()} {address}",
        address=address,
        node=options.node,
        num_cores=len(os.sched_getaffinity(0)),
    )
    fork_server.wait_until_warm()  # a host that is a node can start workers at once
    seat = wait_for_node(rendezvous, options, secret, request, show)
    node = seat.grant.node
    show(f"this host is {node}; logs are in {options.folder / node / LOGS}")
    spec = make_agent_spec(seat.grant, options, address, seat.secret)
    log = Path(spec.log_dir) / f"agent-{node}.log"
    start_logging(log, open_log(log))
    job = read_run(rendezvous, seat.run)
    with fork_server.attach() as control:
        living = _live(spec, Forker(control), rendezvous, job, options.leave_after_s)
        number, is_useless = asyncio.run(living)
    return _leave(spec, _outcome(rendezvous, seat.run), number, is_useless, show)


def meet(options: JoinOptions) -> tuple[Rendezvous, str]:
    """The rendezvous and the secret, once both are there."""
    given = os.environ.get(VARIABLE, "")
    deadline = time.monotonic() + options.wait_s
    while True:
        try:
            rendezvous = open_rendezvous(options.rendezvous)
            if secret := given or rendezvous.secret():
                return rendezvous, secret
            why = f"there is no secret at {options.rendezvous}, and {VARIABLE} is not set"
        except (HoldfastError, OSError) as error:
            why = str(error)
        _wait_or_give_up(deadline, LOOK_AGAIN_S, f"{why}; waited {options.wait_s:g} s")


def _wait_or_give_up(deadline: float, pause_s: float, why: str) -> None:
    if time.monotonic() >= deadline:
        raise HoldfastError(why)
    time.sleep(pause_s)


def find_job(rendezvous: Rendezvous, options: JoinOptions) -> CoordinatorAddress:
    deadline = time.monotonic() + options.wait_s
    while True:
        why = f"no job has begun at {options.rendezvous} within {options.wait_s:g} s"
        try:
            if (found := find_coordinator(rendezvous)) is not None:
                return found
        except OSError as error:
            why = f"{options.rendezvous} cannot be reached: {error}"
        _wait_or_give_up(deadline, LOOK_AGAIN_S, why)


def wait_for_node(
    rendezvous: Rendezvous,
    options: JoinOptions,
    secret: str,
    request: JoinRequest,
    show: Callable[[str], object],
) -> HostSeat:
    """A host that is not needed now waits: it may take the place of one that is lost. Coordinator
    and secret may be those of an earlier run whose successor has not begun, so both are looked up
    again.
    """
    deadline, told = time.monotonic() + options.wait_s, ""
    while True:
        where = options.rendezvous
        try:
            found = find_coordinator(rendezvous)
            if found is None:
                raise HoldfastError(
                    f"the job at {options.rendezvous} ended before this host was a node"
                )
            where = f"{found.host}:{found.port}"
            answer = asyncio.run(_ask(found, secret, request, options.tls))
        except (OSError, TimeoutError, ProofFailed) as error:
            why = f"{where} does not answer: {str(error) or 'no answer'}"
        else:
            if isinstance(answer, NodeGrant):
                return HostSeat(answer, found.run, secret)
            if answer.is_final:
                raise HoldfastError(answer.reason)
            why = answer.reason
        if why != told:
            show(f"{why}; this host waits")
            told = why
        _wait_or_give_up(deadline, ASK_AGAIN_S, f"{why}; waited {options.wait_s:g} s")
        with suppress(OSError):
            secret = os.environ.get(VARIABLE, "") or rendezvous.secret() or secret


async def _ask(
    found: CoordinatorAddress, secret: str, request: JoinRequest, tls: TlsFiles
) -> NodeGrant | JoinRefused:
    answer: asyncio.Future[NodeGrant | JoinRefused] = asyncio.get_running_loop().create_future()

    def lost(why: str) -> None:
        if not answer.done():
            answer.set_exception(ConnectionError(why))

    connection, _ = await open_connection(
        found.host,
        found.port,
        ClientProof(secret, "host", request.host),
        BY_HOST,
        tls=client_tls(tls),
        on_message=answer.set_result,
        on_lost=lost,
    )
    connection.send(request)
    async with asyncio.timeout(ANSWER_S):
        reply = await answer
    connection.close()
    return reply


def make_agent_spec(grant: NodeGrant, options: JoinOptions, address: str, secret: str) -> AgentSpec:
    folder = (options.folder / grant.node).absolute()
    for part in (LOGS, TIMES):
        (folder / part).mkdir(parents=True, exist_ok=True)
    times, job = str(folder / TIMES) if grant.assignment.times else "", grant.assignment.config.job
    return AgentSpec(
        node=grant.node,
        agent=secrets.token_hex(8),
        places=grant.places,
        host="",
        port=0,
        secret=secret,
        tls=files_of(job),
        heartbeat_ms=grant.heartbeat_ms,
        log_dir=str(folder / LOGS),
        assignment=msgspec.structs.replace(grant.assignment, times=times),
        serves=address,
    )


def _leave(
    spec: AgentSpec, outcome: str, number: int, is_useless: bool, show: Callable[[str], object]
) -> int:
    """The exit code; memory that no run needs is removed."""
    if (is_useless or outcome == "finished") and (memory := spec.assignment.memory):
        folder = memory_folder(spec.assignment.config)
        remove_all([node_job(memory, spec.node)], folder)
    if number:
        show(f"{spec.node} leaves the job: {signal.Signals(number).name}")
        return exit_code(number)
    show(f"{spec.node} is done: the job {'has ' + outcome if outcome else 'is over'}")
    return 0


def _outcome(rendezvous: Rendezvous, run: int) -> str:
    """Empty: it is not known."""
    try:
        return how_ended(rendezvous, run)
    except OSError:
        return ""


async def _live(
    spec: AgentSpec,
    forker: Forker,
    rendezvous: Rendezvous,
    job: CoordinatorSpec,
    leave_after_s: float = 0.0,
) -> tuple[int, bool]:
    """The signal that ended it (0: the job is over), and whether no run needs its memory."""
    ours, theirs = socket.socketpair()
    stopped: list[int] = []

    def stop(number: int) -> None:
        stopped.append(number)
        ours.close()

    def take(number: int) -> None:
        loop.call_later(leave_after_s if number == signal.SIGTERM else 0.0, stop, number)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, take, number)
    finder = SucceedingFinder(spec, forker, rendezvous, job)
    agent = Agent(spec, forker, finder)
    with ours, theirs:
        await agent.run(theirs)
    return (stopped[0] if stopped else 0), agent.is_memory_useless
