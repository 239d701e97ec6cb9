"""One worker process: gets its assignment, applies orders, trains, reports, leaves when told to.

Forked from the fork server, so torch and the engine are imported. The main thread trains; others
receive, beat, and build what comes next. If its agent is gone, the worker ends at once.
"""

import logging
import os
import socket

import torch

from holdfast.control.report import Member
from holdfast.control.snapshots.messages import Unloadable
from holdfast.engine.groups import GroupBroken, first_line
from holdfast.engine.interpreter import Hooks
from holdfast.engine.trainer import Trainer
from holdfast.engine.transport.nccl import prepare_process
from holdfast.errors import HoldfastError, InternalError
from holdfast.plan.workers import parse_worker
from holdfast.runtime.agent.sidecars import run_copying, run_persisting
from holdfast.runtime.config.snapshot_options import snapshot_options
from holdfast.runtime.faults.in_worker import WorkerFaults
from holdfast.runtime.launch.job import resolve_backend
from holdfast.runtime.launch.store import connect_store
from holdfast.runtime.record.logs import add_step
from holdfast.runtime.wire.frames import BY_WORKER, Channel
from holdfast.runtime.wire.messages import Assignment, Failed, Hello, Struck, ToWorker
from holdfast.runtime.wire.snapshot_messages import CopySpec, PersistSpec
from holdfast.runtime.worker.agent_link import WorkerLink
from holdfast.runtime.worker.build import make_data, make_model, trainer_config
from holdfast.runtime.worker.progress_page import ProgressPage, make_page_file, start_beating
from holdfast.snapshot.load.job_state import CannotRestore

_LOG = logging.getLogger(__name__)


def run_worker(sock: socket.socket, page_fd: int = -1) -> int:
    """Run a worker to its end; its exit code. `page_fd`: its progress page."""
    page = ProgressPage(page_fd if page_fd >= 0 else make_page_file())
    start_beating(page)
    add_step(lambda: page.read().step)
    channel = Channel(sock, BY_WORKER)
    channel.send(Hello(pid=os.getpid()))
    assignment = channel.receive()
    if assignment is None:
        return 1
    if isinstance(assignment, PersistSpec):
        return run_persisting(assignment, channel)
    if isinstance(assignment, CopySpec):
        return run_copying(assignment, channel)
    if not isinstance(assignment, Assignment):
        raise InternalError(f"the first message is a {type(assignment).__name__}")
    try:
        _LOG.info("assigned as %s#%d", assignment.worker, assignment.incarnation)
        _train(assignment, channel, page)
    except Exception as error:
        _LOG.error("ends after an error: %s", first_line(error), exc_info=True)
        if isinstance(error, CannotRestore):
            channel.send(Unloadable(version=error.version, reason=str(error)))
        channel.send(explain_failure(error))
        return 1
    return 0


def explain_failure(error: Exception) -> Failed:
    """An error in one line; the traceback is in the log."""
    text = first_line(error)
    line = text if isinstance(error, HoldfastError) else f"{type(error).__name__}: {text}"
    return Failed(line=line, is_consequence=isinstance(error, GroupBroken))


def _train(assignment: Assignment, channel: Channel[ToWorker], page: ProgressPage) -> None:
    torch.set_num_threads(assignment.num_threads)
    config = assignment.config
    faults = WorkerFaults(
        assignment.faults,
        page,
        announce=lambda fault, step: channel.send(Struck(kind=fault.kind, step=step)),
    )
    link = WorkerLink(assignment, channel, on_gone=_end_at_once, on_fault=faults.strike)
    trainer = Trainer(
        Member(assignment.worker, assignment.incarnation),
        model=make_model(config.model, config.job.seed),
        data=make_data(config, config.data.micro_batches),
        config=trainer_config(config, pick_device(assignment), resume=assignment.resume),
        store=connect_store(assignment.store_host, assignment.store_port),
        link=link,
        hooks=Hooks(progress=faults.progress, phase=faults.phase),
    )
    link.trainer = trainer
    if assignment.memory:
        options = snapshot_options(config, assignment.memory, assignment.checkpoints)
        trainer.keep_snapshots(options, link)
    link.listen()
    link.tell(trainer.position.state())
    trainer.run()
    trainer.close()


def pick_device(assignment: Assignment) -> str:
    if assignment.config.job.device != "cuda":
        return assignment.config.job.device
    _, device = parse_worker(assignment.worker)
    count = torch.cuda.device_count()
    index = device % count
    if resolve_backend(assignment.config) == "nccl":
        shares_device = assignment.num_workers_here > count
        prepare_process(assignment.worker, shares_device=shares_device)
    torch.cuda.set_device(index)
    return f"cuda:{index}"


def _end_at_once() -> None:
    _LOG.error("ends at once, because its agent is gone")
    os._exit(1)
