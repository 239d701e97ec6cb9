"""A real etcd, on this machine or on a host of a test."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.runtime.rendezvous.etcd import EtcdRendezvous

START_S = 30.0


def why_no_etcd() -> str:
    return "" if shutil.which("etcd") else "there is no etcd here (Debian: etcd-server)"


def etcd_command(data: Path, address: str, port: int, peer_port: int) -> list[str]:
    client, peer = f"http://{address}:{port}", f"http://{address}:{peer_port}"
    return [
        *("etcd", "--name", "one", "--data-dir", str(data)),
        *("--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
        *("--initial-cluster", f"one={peer}", "--log-level", "error"),
    ]


class Etcd:
    """On 127.0.0.1."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._ports = folder, (_free_port(), _free_port())
        self.place = f"127.0.0.1:{self._ports[0]}/job"
        self.start()

    def start(self) -> None:
        command = etcd_command(self._folder / "data", "127.0.0.1", *self._ports)
        with (self._folder / "etcd.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=_environment())
        wait_until_it_answers(self.place)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


@contextmanager
def running_etcd(folder: Path) -> Iterator[Etcd]:
    found = Etcd(folder)
    try:
        yield found
    finally:
        found.stop()


def wait_until_it_answers(place: str) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            EtcdRendezvous(place).last("any")
        except OSError:
            assert time.monotonic() < deadline, f"etcd does not answer at {place}"
            time.sleep(0.1)
        else:
            return


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
