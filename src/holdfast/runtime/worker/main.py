"""One worker process: gets its assignment, applies orders, trains, reports, leaves when told to.

Forked from the fork server, so torch and the engine are imported. The main thread trains; others
receive, beat, and build what comes next. If its agent is gone, the worker ends at once.
"""

import logging
import math
import os
import socket
import traceback
from pathlib import Path
from typing import Any

import torch

import holdfast
from holdfast.control.report import Member
from holdfast.control.snapshots.messages import Unloadable
from holdfast.engine.groups import GroupBroken, first_line
from holdfast.engine.interpreter import Hooks
from holdfast.engine.trainer import Trainer
from holdfast.engine.transport.nccl import prepare_process
from holdfast.errors import HoldfastError, InternalError
from holdfast.plan.workers import parse_worker
from holdfast.runtime.agent.sidecars import run_completing, run_copying, run_persisting
from holdfast.runtime.config.snapshot_options import snapshot_options
from holdfast.runtime.faults.in_worker import WorkerFaults
from holdfast.runtime.faults.kinds import Fault
from holdfast.runtime.launch.job import resolve_backend
from holdfast.runtime.launch.store import connect_store
from holdfast.runtime.record.logs import add_step
from holdfast.runtime.wire.frames import BY_WORKER, Channel
from holdfast.runtime.wire.messages import Assignment, Failed, FaultAnnounced, Hello, ToWorker
from holdfast.runtime.wire.snapshot_messages import CopySpec, LightSpec, PersistSpec
from holdfast.runtime.worker.action_recorder import ActionRecorder
from holdfast.runtime.worker.agent_link import WorkerLink
from holdfast.runtime.worker.build import make_data, make_eval, make_model, trainer_config
from holdfast.runtime.worker.group_store import GroupStores, PeerDirectory
from holdfast.runtime.worker.progress_page import ProgressPage, make_page_file, start_beating
from holdfast.runtime.worker.remote_memory import RemoteMemories
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
    if isinstance(assignment, LightSpec):
        return run_completing(assignment, channel)
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
    line += _user_place(error)
    return Failed(line=line, is_consequence=isinstance(error, GroupBroken))


def _user_place(error: Exception) -> str:
    """The last line of the user's own code that an error came through, if it came through any."""
    frames = traceback.extract_tb(error.__traceback__)
    installed = (os.path.dirname(holdfast.__file__), "site-packages", "lib/python", "<")
    own = [f for f in frames if not any(part in f.filename for part in installed)]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""


def rank_variables(assignment: Assignment) -> dict[str, str]:
    """As torchrun names them, for the user's code: places in the hardware under the plan that the
    job began with. There is no MASTER_ADDR, since there is no master.
    """
    parallel = assignment.config.parallel
    node, device = parse_worker(assignment.worker)
    degrees = (parallel.replicas, parallel.stages, parallel.tensor, parallel.shard)
    num_workers = math.prod(degrees)
    here = min(parallel.devices_per_node, num_workers)
    found = {
        "RANK": node * here + device,
        "WORLD_SIZE": num_workers,
        "LOCAL_RANK": device,
        "LOCAL_WORLD_SIZE": here,
        "GROUP_RANK": node,
    }
    return {name: str(number) for name, number in found.items()}


def _train(assignment: Assignment, channel: Channel[ToWorker], page: ProgressPage) -> None:
    os.environ.update(rank_variables(assignment))
    torch.set_num_threads(assignment.num_threads)
    config = assignment.config
    faults = WorkerFaults(
        assignment.faults,
        page,
        announce=lambda fault, step: _announce(assignment.worker, channel, fault, step),
    )
    access = assignment.access
    peers = PeerDirectory(access, assignment.worker) if access is not None else None
    link = WorkerLink(
        assignment,
        channel,
        on_gone=_end_at_once,
        on_fault=faults.carry_out,
        on_peers=peers.learn if peers is not None else lambda found: None,
    )
    hooks = Hooks(progress=faults.progress, phase=faults.phase, between=page.enter)
    trainer = Trainer(
        Member(assignment.worker, assignment.incarnation),
        model=make_model(config),
        data=make_data(config, config.data.micro_batches),
        config=trainer_config(config, pick_device(assignment), resume=assignment.resume),
        store=find_store(assignment, peers),
        link=link,
        hooks=hooks,
        evaluated=make_eval(config),
    )
    link.trainer, faults.emulated = trainer, trainer.emulated
    faults.stopwatch = trainer.stopwatch
    faults.spoil = lambda: spoil_state(trainer)
    if assignment.memory:
        options = snapshot_options(config, assignment.memory, assignment.checkpoints)
        snapshots = trainer.keep_snapshots(options, link)
        snapshots.others = RemoteMemories(peers) if peers is not None else None
    recorder = record_actions(assignment, trainer, hooks)
    link.listen()
    link.tell(trainer.position.state())
    trainer.run()
    trainer.close()
    if recorder is not None:
        recorder.close()


def find_store(assignment: Assignment, peers: PeerDirectory | None) -> Any:
    """Through which its groups are made."""
    if peers is None:
        return connect_store(assignment.store_host, assignment.store_port)
    return GroupStores(peers, assignment.config.job.timeout_s)


def record_actions(assignment: Assignment, trainer: Trainer, hooks: Hooks) -> ActionRecorder | None:
    """From the next step on; None: it is not asked for."""
    view = assignment.config.view
    if not view.trace_every or not assignment.times:
        return None
    recorder = ActionRecorder(
        Path(assignment.times) / f"{assignment.worker}.jsonl",
        assignment.incarnation,
        every=view.trace_every,
        limit_bytes=view.trace_limit_bytes,
        device=trainer.device,
        progress=hooks.progress,
        epoch=lambda: trainer.epoch,
    )
    recorder.gaps = trainer.gaps
    if (snapshots := trainer.snapshots) is not None:
        recorder.copies_until_s = lambda: snapshots.copies_until_s
    hooks.progress, hooks.reduced, trainer.gaps = recorder.progress, recorder.reduced, recorder
    return recorder


def _announce(worker: str, channel: Channel[ToWorker], fault: Fault, step: int) -> None:
    """What many are told, one says."""
    if not fault.hits_all or f"{fault.target.partition('>')[0]}.g0".startswith(worker):
        target = fault.target if fault.hits_all else worker
        channel.send(
            FaultAnnounced(
                kind=fault.kind,
                step=step,
                target=target,
                factor=fault.slowness,
                duration_s=fault.duration_s,
                steps=fault.steps,
            )
        )


def spoil_state(trainer: Trainer) -> None:
    """As a flipped bit would, which no checksum sees."""
    with torch.no_grad():
        for piece in trainer.slices.values():
            piece.parameter.view(-1)[0] = float("nan")


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
