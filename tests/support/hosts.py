"""Hosts of a cluster as namespaces of this machine: each with processes, an interface and shared
memory of its own, on a network that only they have. For root.

    switch    a namespace with a bridge; pulling a host's cable is taking its port down there, so
              nothing tells either side: no FIN, no RST
    host      a namespace of processes, mounts (an empty /dev/shm) and network. When its first
              process is killed, all of it is gone at once, like a host that lost its power
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ETHERNET_MTU, LOOPBACK_MTU = 1500, 65535
"""Bytes of a packet, at most; of the loopback interface, as many as a veth pair can have."""
HOLDFAST = [sys.executable, "-m", "holdfast.cli.main"]
NETWORK = "10.77.0"


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def why_not() -> str:
    """Why there can be no hosts here; empty: there can."""
    if os.geteuid() != 0:
        return "hosts as namespaces need root"
    name = f"hf-{secrets.token_hex(3)}"
    try:
        run("ip", "netns", "add", name)
        run("ip", "netns", "del", name)
        run("unshare", "-m", "-p", "-f", "--mount-proc", "true")
    except (OSError, subprocess.CalledProcessError) as error:
        return f"hosts as namespaces are not possible here: {error}"
    return ""


class Host:
    def __init__(self, switch: str, number: int, folder: Path, mtu: int) -> None:
        self.address, self.folder = f"{NETWORK}.{number + 1}", folder / f"host-{number}"
        self.folder.mkdir()
        self._switch, self._port, self._name = switch, f"p{number}", f"{switch}-{number}"
        run("ip", "netns", "add", self._name)
        run(
            *("ip", "-n", self._name, "link", "add", "eth0", "mtu", str(mtu), "type", "veth"),
            *("peer", "name", self._port, "mtu", str(mtu), "netns", switch),
        )
        run("ip", "-n", self._name, "addr", "add", f"{self.address}/24", "dev", "eth0")
        for interface in ("lo", "eth0"):
            run("ip", "-n", self._name, "link", "set", interface, "up")
        run("ip", "-n", switch, "link", "set", self._port, "master", "br0", "up")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._begin()

    def _begin(self) -> None:
        mount = "mount -t tmpfs tmpfs /dev/shm; echo; exec sleep infinity"
        self._keeper = subprocess.Popen(
            [
                *("ip", "netns", "exec", self._name, "unshare", "-m", "-p", "-f"),
                *("--mount-proc", "--kill-child", "sh", "-c", mount),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # older versions of unshare complain when it ends
        )
        assert self._keeper.stdout is not None
        self._keeper.stdout.readline()
        children = Path(f"/proc/{self._keeper.pid}/task/{self._keeper.pid}/children")
        self._first = int(children.read_text().split()[0])

    def start(self, *command: str, log: str, env: dict[str, str] | None = None) -> "Process":
        enter = ["nsenter", "-t", str(self._first), "-m", "-p", "-n", f"--wd={self.folder}"]
        path = self.folder / log
        with path.open("ab") as out:
            found = subprocess.Popen(
                [*enter, *command],
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
            )
        self._processes.append(found)
        return Process(found, path)

    def wait_until_listening(self, port: int) -> None:
        """Seen from itself: other processes of this machine cannot reach it."""
        look = (
            "import socket, sys, time\n"
            "for _ in range(300):\n"
            "    with socket.socket() as s:\n"
            f"        if s.connect_ex(({self.address!r}, {port})) == 0: sys.exit(0)\n"
            "    time.sleep(0.1)\n"
            "sys.exit(1)\n"
        )
        assert self.start(sys.executable, "-c", look, log="look.log").wait(60) == 0

    def lose(self) -> None:
        """All its processes and its memory are gone, at once."""
        os.kill(self._first, signal.SIGKILL)
        self._keeper.wait()
        assert self._keeper.stdout is not None
        self._keeper.stdout.close()
        for process in self._processes:
            process.wait()
        self._processes.clear()

    def back(self) -> None:
        """It has power again, and nothing in its memory."""
        self._begin()

    def cut(self) -> None:
        run("ip", "-n", self._switch, "link", "set", self._port, "down")

    def mend(self) -> None:
        run("ip", "-n", self._switch, "link", "set", self._port, "up")

    def deafen(self) -> None:
        """It sends, and receives nothing: a cut of one way."""
        run(
            "ip", "netns", "exec", self._name, "iptables", "-A", "INPUT", "-i", "eth0", "-j", "DROP"
        )

    def cure(self) -> None:
        run("ip", "netns", "exec", self._name, "iptables", "-F")

    def drops(self) -> list[str]:
        """Rules of its kernel by which packets are dropped."""
        command = ("ip", "netns", "exec", self._name, "iptables", "-S")
        found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return [line for line in found.splitlines() if line.endswith("DROP")]

    def is_slow(self) -> bool:
        """Its kernel limits what it sends."""
        command = ("ip", "netns", "exec", self._name, "tc", "qdisc", "show", "dev", "eth0")
        return "tbf" in subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def shared_memory(self) -> list[str]:
        return os.listdir(f"/proc/{self._first}/root/dev/shm")

    def close(self) -> None:
        if self._keeper.poll() is None:
            self.lose()
        run("ip", "netns", "del", self._name)


class Process:
    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.process, self.log = process, log

    def wait(self, seconds: float = 400.0) -> int:
        return self.process.wait(seconds)

    def text(self) -> str:
        return self.log.read_text(errors="replace")


@contextlib.contextmanager
def cluster(num_hosts: int, folder: Path, *, mtu: int = ETHERNET_MTU) -> Iterator[list[Host]]:
    switch = f"hf-{secrets.token_hex(3)}"
    with contextlib.ExitStack() as stack:
        run("ip", "netns", "add", switch)
        stack.callback(run, "ip", "netns", "del", switch)
        run("ip", "-n", switch, "link", "add", "name", "br0", "type", "bridge")
        run("ip", "-n", switch, "link", "set", "br0", "up")
        hosts: list[Host] = []
        for number in range(num_hosts):
            hosts.append(Host(switch, number, folder, mtu))
            stack.callback(hosts[-1].close)
        yield hosts


def start_job(
    hosts: Sequence[Host], job: Path, shared: Path, *settings: str, place: str = ""
) -> tuple[Process, list[Process]]:
    """The launcher on the first host, an agent on every host but it. `place`: the rendezvous, if it
    is not that directory.
    """
    place = place or f"dir:{shared}"
    command = [*HOLDFAST, "run", str(job), "--rdzv", place, "--run_dir", str(shared), *settings]
    launcher = hosts[0].start(*command, log="run.log")
    return launcher, [start_agent(host, shared, place=place) for host in hosts[1:]]


def start_agent(host: Host, shared: Path, *options: str, place: str = "") -> Process:
    place = place or f"dir:{shared}"
    command = [*HOLDFAST, "agent", "--join", place, "--folder", str(host.folder)]
    return host.start(*command, *options, log="agent.log")
