"""From a job file to what a scheduler is asked for."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from holdfast.plan.workers import node_of
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.settings import read_config
from holdfast.runtime.launch.prepare import prepare_job
from holdfast.runtime.launch.signals import DEFAULT_ACTIONS
from holdfast.submit.request import SubmitRequest, choose_stop_signal, read_options


def make_request(
    file: Path,
    settings: Sequence[str] = (),
    options: Sequence[str] = (),
    num_spare_hosts: int = 0,
) -> SubmitRequest:
    """A job that `holdfast run` would refuse is refused here. `options`: the scheduler's own."""
    config = read_config(file, settings, os.environ)
    job = prepare_job(_without_device(config), tokenise=False)
    nodes = dict.fromkeys(node_of(worker) for worker in job.workers)
    per_node = max(sum(node_of(w) == node for w in job.workers) for node in nodes)
    chosen = {**DEFAULT_ACTIONS, **config.job.signals}
    actions = {str(name): str(action) for name, action in chosen.items()}
    return SubmitRequest(
        name=config.job.name,
        num_nodes=len(nodes),
        num_spare_hosts=num_spare_hosts,
        devices_per_node=per_node,
        is_cuda=config.job.device == "cuda",
        program=(sys.executable, "-m", "holdfast"),
        job_file=str(file.absolute()),
        job_text=file.read_text(encoding="utf-8"),
        settings=tuple(settings),
        folder=os.getcwd(),
        rendezvous=_absolute(config.net.rendezvous),
        run_dir=os.path.abspath(config.job.run_dir) if config.job.run_dir else "",
        interface=config.net.interface,
        tls_cert=os.path.abspath(config.job.tls_cert) if config.job.tls_cert else "",
        tls_key=os.path.abspath(config.job.tls_key) if config.job.tls_key else "",
        grace_s=config.job.grace_s,
        stop_signal=choose_stop_signal(actions),
        view_port=config.view.port,
        options=read_options(options),
    )


def _without_device(config: JobConfig) -> JobConfig:
    """For the check: a login node needs no GPU, and no address that the hosts have."""
    job = msgspec.structs.replace(config.job, device="cpu", backend="auto")
    net = msgspec.structs.replace(config.net, rendezvous="", nodes=0, address="", interface="")
    return msgspec.structs.replace(config, job=job, net=net)


def _absolute(rendezvous: str) -> str:
    kind, _, place = rendezvous.partition(":")
    return f"dir:{os.path.abspath(place)}" if kind == "dir" and place else rendezvous
