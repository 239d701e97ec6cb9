"""Whether the control plane scales: a real coordinator and thousands of agents on real sockets.

The coordinator is the process that every job has, with its journal on disk. The agents are light:
one process holds all their connections, each with one worker that follows orders and does nothing
else. They connect, prove the secret, start their worker and enter the first order; then one worker
dies. What is measured is the change of epoch that follows:

    freeze   from the word of the death to the freeze at the last agent
    decide   from the last report sent to the new order at the last agent: reports read, the step
             resolved, the order on disk, packed and sent
    reach    from the first agent that has the new order to the last

and the bytes that an agent receives for it. Plans travel as differences, and so do the names of
those who take part. Then the coordinator is killed, and a worker at the same time. The next
coordinator listens at the same socket, as on one machine; agents try again as real ones do:

    back     from the kill until the last agent is connected to the successor
    decided  from the kill to the order without that worker at the last agent

Goals (2,000 agents; 200 with --quick):
    a death to the new order at the last agent        below 1 s
    bytes per agent for a change of epoch             below 1,000
    coordinator killed: all agents are back           within 10 s

Both processes share this machine, and so does the coordinator's time with that of all agents: on
machines of their own the agents' part of it falls away.
"""

import argparse
import asyncio
import os
import shutil
import socket
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic, perf_counter, sleep

import msgspec
import psutil  # type: ignore[import-untyped]

from _common import Goal, finish, parse_args, print_table
from holdfast.control.facts import Beat, NodeConnected, WorkerExited, WorkerStarted
from holdfast.control.order import Freeze, Order
from holdfast.control.report import Member
from holdfast.control.worker_position import WorkerPosition
from holdfast.control.worker_reports import Planned
from holdfast.errors import invariant
from holdfast.observe.run_clock import start_clock
from holdfast.plan.build import regular_plan
from holdfast.plan.model_catalog import llama_shape, llama_units
from holdfast.plan.plan import Plan
from holdfast.runtime.agent.agent import FIRST_WAIT_S, LAST_WAIT_S
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.job_sections import JobSection
from holdfast.runtime.config.recovery_sections import RecoverySection, SnapshotSection
from holdfast.runtime.coordinator.order_deltas import OrderUnpacker
from holdfast.runtime.launch.fork_server import ForkServer
from holdfast.runtime.launch.launcher_messages import CoordinatorSpec, StartOf
from holdfast.runtime.launch.light_fork_server import LightForkServer
from holdfast.runtime.launch.store import bind
from holdfast.runtime.wire.connection import ClientConnection, open_connection
from holdfast.runtime.wire.frames import BY_AGENT, pack
from holdfast.runtime.wire.messages import (
    FromWorker,
    Hello,
    OrderForNode,
    Relayed,
    StartWorker,
    ToAgent,
    ToMember,
)
from holdfast.runtime.wire.secret import ClientProof, ProofFailed
from holdfast.runtime.worker.progress_page import now_ms

SECRET = "a secret for a benchmark"
STAGES = 8
BEAT_S = 1.0
DEADLINE_S = 300.0


class Clock:
    """When the first and the last agent got something."""

    def __init__(self, expected: int) -> None:
        self.expected, self.seen = expected, 0
        self.first = self.last = 0.0
        self.all_seen = asyncio.Event()

    def tick(self) -> None:
        self.last = perf_counter()
        self.first = self.first or self.last
        self.seen += 1
        if self.seen == self.expected:
            self.all_seen.set()


class LightAgent:
    """One node with one worker that follows and does nothing else."""

    def __init__(self, node: str, bench: "Bench") -> None:
        self.node, self._bench = node, bench
        self.member = Member(f"{node}.g0", 1)
        self._ledger = WorkerPosition(self.member)
        self._orders = OrderUnpacker()
        self.connection: ClientConnection | None = None
        self.num_bytes = 0
        self._is_alive = False
        """Its worker."""

    async def connect(self, port: int) -> None:
        lost = asyncio.Event()
        self.connection, _ = await open_connection(
            "127.0.0.1",
            port,
            ClientProof(SECRET, "agent", self.node),
            BY_AGENT,
            on_message=self._hear,
            on_lost=lambda why: lost.set(),
        )
        self._lost, self._orders = lost, OrderUnpacker()
        received = self.connection.data_received

        def count(data: bytes) -> None:
            self.num_bytes += len(data)
            received(data)

        self.connection.data_received = count  # type: ignore[method-assign]
        here = (self._ledger.state(),) if self._is_alive else ()
        name = self.member.name
        self.send(NodeConnected(node=self.node, agent=self.node, places=(name,), workers=here))

    async def come_back(self, port: int) -> None:
        """As a real agent does it (`Agent._keep_connected`)."""
        await self._lost.wait()
        self.connection, wait_s = None, FIRST_WAIT_S
        while self.connection is None:
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, LAST_WAIT_S)
            with suppress(OSError, ProofFailed, TimeoutError):
                await self.connect(port)
        self._bench.back.tick()

    def send(self, message: NodeConnected | WorkerStarted | WorkerExited | Relayed | Beat) -> None:
        if self.connection is not None:
            self.connection.send(message)

    def _say(self, message: FromWorker) -> None:
        self.send(Relayed(member=self.member, message=message))

    def _tell(self) -> None:
        self._say(self._ledger.state())

    def _hear(self, message: ToAgent) -> None:
        match message:
            case StartWorker(member=member) if member == self.member:
                self._is_alive = True
                self.send(WorkerStarted(member=member, pid=1))
                self._say(Hello(pid=1))
                self._tell()
            case ToMember(message=Freeze() as freeze):
                self._bench.frozen.tick()
                if self._ledger.on_freeze(freeze) is not None:
                    self._tell()
                    self._bench.last_report = perf_counter()
            case OrderForNode():
                for order in self._orders.unpack(message).values():
                    self._obey(order)

    def _obey(self, order: Order) -> None:
        (self._bench.ordered if order.kind == "recover" else self._bench.started).tick()
        if self._ledger.accepts(order)[0]:
            self._ledger.enter(order)
            # On a machine of its own an agent's answer would keep no other from reading.
            asyncio.get_running_loop().call_soon(self._tell)

    def die(self) -> None:
        self._is_alive = False
        self.send(WorkerExited(self.member, "was killed by SIGKILL"))


class Bench:
    def __init__(self, plan: Plan, port: int) -> None:
        self._port = port
        nodes = [worker.partition(".")[0] for worker in plan.workers]
        self.agents = [LightAgent(node, self) for node in nodes]
        self.started = Clock(len(nodes))
        self.frozen, self.ordered = Clock(len(nodes) - 1), Clock(len(nodes) - 1)
        self.back = Clock(len(nodes))
        self.last_report = 0.0

    async def run(
        self, coordinator: psutil.Process, restart: Callable[[], object]
    ) -> dict[str, float]:
        begin = perf_counter()
        beating = asyncio.create_task(self._beat())
        for first in range(0, len(self.agents), 100):
            await asyncio.gather(*(a.connect(self._port) for a in self.agents[first : first + 100]))
        connected = perf_counter()
        await asyncio.wait_for(self.started.all_seen.wait(), DEADLINE_S)
        await asyncio.sleep(2 * BEAT_S)
        cpu, before = cpu_seconds(coordinator), perf_counter()
        await asyncio.sleep(3 * BEAT_S)
        share = (cpu_seconds(coordinator) - cpu) / (perf_counter() - before)
        bytes_before = [agent.num_bytes for agent in self.agents[1:]]
        cpu, death = cpu_seconds(coordinator), perf_counter()
        self.agents[0].die()
        await asyncio.wait_for(self.ordered.all_seen.wait(), DEADLINE_S)
        cpu = cpu_seconds(coordinator) - cpu
        gained = [a.num_bytes - b for a, b in zip(self.agents[1:], bytes_before, strict=True)]
        found = {
            "connect": connected - begin,
            "start": self.started.last - connected,
            "idle share": share,
            "freeze": self.frozen.last - death,
            "decide": self.ordered.last - self.last_report,
            "reach": self.ordered.last - self.ordered.first,
            "whole": self.ordered.last - death,
            "cpu": cpu,
            "bytes": sum(gained) / len(gained),
            "start bytes": sum(bytes_before) / len(bytes_before),
        }
        await asyncio.sleep(2 * BEAT_S)
        found |= await self._lose_coordinator(coordinator, restart)
        beating.cancel()
        return found

    async def _lose_coordinator(
        self, coordinator: psutil.Process, restart: Callable[[], object]
    ) -> dict[str, float]:
        self.ordered = Clock(len(self.agents) - 2)
        coming = [asyncio.create_task(agent.come_back(self._port)) for agent in self.agents]
        await asyncio.sleep(0)
        death = perf_counter()
        coordinator.kill()
        self.agents[1].die()
        await asyncio.to_thread(coordinator.wait, DEADLINE_S)  # the launcher is told of its end
        restart()
        await asyncio.wait_for(asyncio.gather(*coming), DEADLINE_S)
        invariant(self.back.seen == len(self.agents), "an agent came back twice")
        await asyncio.wait_for(self.ordered.all_seen.wait(), DEADLINE_S)
        return {"back": self.back.last - death, "decided": self.ordered.last - death}

    async def _beat(self) -> None:
        while True:
            for agent in self.agents:
                agent.send(Beat(node=agent.node, sent_ms=now_ms()))
            await asyncio.sleep(BEAT_S)


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def make_plan(num_agents: int) -> Plan:
    """One worker on every node."""
    replicas = num_agents // STAGES
    return regular_plan(
        llama_units(msgspec.structs.replace(llama_shape("llama-tiny"), num_layers=STAGES)),
        replicas=replicas,
        stages=STAGES,
        micro_batches=2 * replicas,
        devices_per_node=1,
    )


def measure(num_agents: int) -> dict[str, float]:
    run_dir = Path(tempfile.mkdtemp(prefix="holdfast-control-"))
    (run_dir / "plans").mkdir()
    plan = make_plan(num_agents)
    spec = CoordinatorSpec(
        run_dir=os.fspath(run_dir),
        secret=SECRET,
        config=JobConfig(
            job=JobSection(steps=10**6, timeout_s=DEADLINE_S),
            recovery=RecoverySection(max_restarts=0, answer_ms=100_000),
            snapshot=SnapshotSection(every=0),
        ),
        plans=(Planned(0, plan),),
        backend="gloo",
        clock=start_clock(),
    )
    try:
        with LightForkServer() as light_server, bind("127.0.0.1", 0) as listener:
            light_server.wait_until_warm()
            with ExitStack() as stack:

                def start() -> None:
                    """Now, and again when it is lost: as the launcher does it."""
                    ours, theirs = (stack.enter_context(end) for end in socket.socketpair())
                    light_server.fork(theirs, run_dir / "coordinator.log", listener.fileno())
                    ours.sendall(pack(StartOf(spec=spec)))

                start()
                coordinator = child_of(light_server)
                bench = Bench(plan, listener.getsockname()[1])
                return asyncio.run(bench.run(coordinator, start))
    except Exception:
        log = (run_dir / "coordinator.log").read_text().splitlines()
        print(*log[-20:], sep="\n")
        raise
    finally:
        shutil.rmtree(run_dir)


def child_of(light_server: ForkServer) -> psutil.Process:
    """It is forked when the light fork server comes to it."""
    deadline_s = monotonic() + DEADLINE_S
    while not (children := psutil.Process(light_server.pid).children()):
        if monotonic() > deadline_s:
            raise TimeoutError(f"no coordinator after {DEADLINE_S:g} s")
        sleep(0.01)
    return children[0]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--agents", type=int, default=0, help="how many; a multiple of 8")


def main() -> None:
    args = parse_args(__doc__, extend=add_options)
    num_agents = args.agents or (200 if args.quick else 2000)
    found = measure(num_agents)
    rows = [
        {"what": "all agents connected and proved (s)", "value": found["connect"]},
        {"what": "first order at the last agent (s)", "value": found["start"]},
        {"what": "bytes per agent until then", "value": found["start bytes"]},
        {
            "what": "share of a core, idle job, a beat a second",
            "value": found["idle share"],
        },
        {"what": "death to freeze at the last agent (s)", "value": found["freeze"]},
        {"what": "last report to new order at the last agent (s)", "value": found["decide"]},
        {"what": "new order, first to last agent (s)", "value": found["reach"]},
        {"what": "death to new order at the last agent (s)", "value": found["whole"]},
        {"what": "coordinator's processor time for all of it (s)", "value": found["cpu"]},
        {"what": "bytes per agent for the change of epoch", "value": found["bytes"]},
        {"what": "coordinator killed: until all agents are back (s)", "value": found["back"]},
        {"what": "... a worker with it: new order at the last (s)", "value": found["decided"]},
    ]
    print_table(f"{num_agents} agents, one coordinator", rows)
    goals = [
        Goal("a death to the new order at the last agent", found["whole"], 1.0, "s"),
        Goal("bytes per agent for a change of epoch", found["bytes"], 1000, "bytes"),
        Goal("coordinator killed: all agents are back", found["back"], 10.0, "s"),
    ]
    finish(goals, args.json, found)


if __name__ == "__main__":
    main()
