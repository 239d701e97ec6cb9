"""A job on the nodes of a Ray cluster: `holdfast.ray.train("job.toml")` in a script that is
connected to one, or `python -m holdfast.ray job.toml` as the entry point of a Ray job.

Ray starts one actor per node (a placement group, STRICT_SPREAD), and restarts it: on its node when
its process dies, on another node when its node is gone. An actor does nothing but keep an agent
running, which dies with it. The launcher is a process of the driver. Hosts meet in a directory that
all nodes share.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from holdfast.api.submission import make_request
from holdfast.errors import HoldfastError
from holdfast.submit.ray import STRATEGY, agent_command, bundles, run_command
from holdfast.submit.request import SubmitRequest

MAX_STARTS = 10
LEAVE_S = 30.0
"""How long agents may take to end when the job is over."""
DIE_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"
)
"""An actor that Ray kills takes its agent along (PR_SET_PDEATHSIG), and that its workers."""
OVER = (0, 1, 2, 130, 143)
"""Exit codes of an agent that is not started again."""


def train(
    job: str | os.PathLike[str],
    *settings: str,
    num_spare_hosts: int = 0,
    options: Sequence[str] = (),
    gather_within_s: float = 600.0,
) -> int:
    """Run a job to its end; the exit code of `holdfast run`.

    `settings` are those of its command line. Without `net.rendezvous` the job meets and writes in
    runs/NAME of this directory, which all nodes have to share; the same call again goes on there.
    """
    request = make_request(Path(job), settings, options, num_spare_hosts)
    run_dir = request.run_dir or _met(request) or str(Path(request.folder, "runs", request.name))
    rendezvous = request.rendezvous or f"dir:{run_dir}"
    if not ray.is_initialized():
        ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), log_to_driver=True)
    group = placement_group(bundles(request), strategy=STRATEGY)
    try:
        _wait_for_hosts(group, request, gather_within_s)
        actors = [_start(group, number) for number in range(request.num_hosts)]
        calls = [actor.run.remote(request, rendezvous, run_dir) for actor in actors]
        code = _launch(run_command(request, rendezvous, run_dir), request.folder)
        ray.wait(calls, num_returns=len(calls), timeout=LEAVE_S)
        return code
    finally:
        remove_placement_group(group)  # the actors go with it


def _met(request: SubmitRequest) -> str:
    kind, _, place = request.rendezvous.partition(":")
    return place if kind == "dir" else ""


def _wait_for_hosts(group: Any, request: SubmitRequest, seconds: float) -> None:
    if not group.wait(seconds):
        alive = sum(bool(node["Alive"]) for node in ray.nodes())
        raise HoldfastError(
            f"the job needs {request.num_hosts} nodes of Ray with {bundles(request)[0]} each; "
            f"there are {alive} nodes, and not enough of them are free within {seconds:g} s"
        )


def _start(group: Any, number: int) -> Any:
    where = PlacementGroupSchedulingStrategy(
        placement_group=group, placement_group_bundle_index=number
    )
    options = {"scheduling_strategy": where, "max_restarts": -1, "max_task_retries": -1}
    reserved = group.bundle_specs[number]
    actor = ray.remote(AgentActor).options(
        num_cpus=reserved["CPU"], num_gpus=reserved.get("GPU", 0), **options
    )
    return actor.remote()


class AgentActor:
    """Keeps an agent running on its node."""

    def run(self, request: SubmitRequest, rendezvous: str, run_dir: str) -> int:
        """Until the job is over; the agent's exit code."""
        node = ray.get_runtime_context().get_node_id()
        folder = str(Path(run_dir, "hosts", node))
        command = agent_command(request, rendezvous, folder, label=node)
        for _ in range(MAX_STARTS):
            done = subprocess.run(
                [sys.executable, "-c", DIE_WITH_PARENT, *command],
                cwd=request.folder,
                stdin=subprocess.DEVNULL,
                check=False,
            )
            if (code := done.returncode) in OVER:
                break
        return code


def _launch(command: Sequence[str], folder: str) -> int:
    """The launcher, until it ends. A Ray job is stopped by SIGTERM to the driver: the launcher
    gets it and writes a checkpoint.
    """
    process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL)
    before = {}
    for number in (signal.SIGTERM, signal.SIGUSR1):
        before[number] = signal.signal(number, lambda got, _: process.send_signal(got))
    try:
        return process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if process.poll() is None:
            process.terminate()
            process.wait()


def main(argv: Sequence[str]) -> int:
    """`python -m holdfast.ray job.toml [--with=NAME=VALUE] [--spare-hosts N] [settings]`."""
    if not argv:
        raise SystemExit(main.__doc__)
    file, *rest = argv
    options = [word.removeprefix("--with=") for word in rest if word.startswith("--with=")]
    rest = [word for word in rest if not word.startswith("--with=")]
    num_spare_hosts = 0
    if rest[:1] == ["--spare-hosts"]:
        num_spare_hosts, rest = int(rest[1]), rest[2:]
    try:
        return train(file, *rest, num_spare_hosts=num_spare_hosts, options=options)
    except HoldfastError as error:
        raise SystemExit(f"holdfast: error: {error}") from None


if __name__ == "__main__":
    from holdfast.ray import main as run_main  # not of __main__: actors are found by their module

    sys.exit(run_main(sys.argv[1:]))
