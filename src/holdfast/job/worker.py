"""One worker process: gets its assignment, trains, reports, leaves when it is told to.

Forked from the template, so everything is imported. The main thread trains; a second one listens
for orders. If the launcher is gone, the worker ends at once.
"""

import os
import socket
import threading
import traceback
from typing import NoReturn

import torch
import torch.distributed as dist

from holdfast.engine.groups import GroupBroken, first_line
from holdfast.engine.trainer import ChangeReport, StepReport, Trainer
from holdfast.errors import HoldfastError, InternalError
from holdfast.job.config import JobConfig
from holdfast.job.final import write_final
from holdfast.job.prepare import make_data, make_model, trainer_config
from holdfast.job.wire import (
    Assignment,
    ChangeMessage,
    Channel,
    Failed,
    Finished,
    Hello,
    Leave,
    Measured,
    Ready,
    Sample,
    StepMessage,
    Stop,
    WireError,
)
from holdfast.plan.workers import parse_worker

WARM_UP_STEPS = 2
"""Of every epoch; left out of what is measured."""


def run_worker(sock: socket.socket) -> int:
    """A worker's whole life; its exit code."""
    channel = Channel(sock)
    channel.send(Hello(pid=os.getpid()))
    assignment = channel.receive()
    if assignment is None:
        return 1
    if not isinstance(assignment, Assignment):
        raise InternalError(f"the first message is a {type(assignment).__name__}")
    try:
        _train(assignment, channel)
    except Exception as error:
        traceback.print_exc()
        channel.send(explain_failure(error))
        return 1
    return 0


def explain_failure(error: Exception) -> Failed:
    """An error in one line; the traceback is in the log."""
    text = first_line(error)
    line = text if isinstance(error, HoldfastError) else f"{type(error).__name__}: {text}"
    return Failed(
        kind=type(error).__name__, line=line, is_consequence=isinstance(error, GroupBroken)
    )


def _train(assignment: Assignment, channel: Channel) -> None:
    torch.set_num_threads(assignment.num_threads)
    config = assignment.config
    reporter = WorkerReporter(assignment.worker, channel)
    store = dist.TCPStore(
        assignment.store_host, assignment.store_port, is_master=False, wait_for_workers=False
    )
    trainer = Trainer(
        assignment.worker,
        assignment.plans,
        model=make_model(config.model, config.job.seed),
        data=make_data(config, assignment.plans[0].plan.num_micro_batches),
        config=trainer_config(config, pick_device(config, assignment.worker)),
        store=store,
        reporter=reporter,
    )
    reporter.trainer = trainer
    channel.send(Ready())
    next_step = trainer.run()
    reporter.send_measured()
    final_bytes = 0
    if assignment.final_dir and trainer.slices:
        final_bytes = write_final(
            assignment.final_dir, assignment.worker, reporter.epoch, next_step, trainer.slices
        )
    channel.send(
        Finished(
            epoch=reporter.epoch,
            next_step=next_step,
            staging_bytes=trainer.staging_bytes,
            final_bytes=final_bytes,
        )
    )
    # Peers may still be in the last exchange with this worker: all leave together.
    reporter.leave.wait(config.job.timeout_s)
    trainer.close()


def pick_device(config: JobConfig, worker: str) -> str:
    if config.job.device != "cuda":
        return config.job.device
    _, device = parse_worker(worker)
    index = device % torch.cuda.device_count()
    torch.cuda.set_device(index)
    return f"cuda:{index}"


class WorkerReporter:
    """Between the trainer and the launcher: reports go up, orders come down."""

    def __init__(self, worker: str, channel: Channel) -> None:
        self._worker, self._channel = worker, channel
        self.trainer: Trainer | None = None
        self.epoch = 0
        self._num_steps_of_epoch = 0
        self._warm_up: tuple[Sample, ...] = ()
        self._stop = threading.Event()
        self.leave = threading.Event()
        threading.Thread(target=self._listen, daemon=True, name="orders").start()

    def _listen(self) -> None:
        try:
            while True:
                match self._channel.receive():
                    case Stop():
                        self._stop.set()
                    case Leave():
                        self.leave.set()
                    case other:
                        _end(f"the launcher is gone ({other})")
        except (OSError, WireError) as error:
            _end(f"the launcher is gone: {error}")

    def step_done(self, report: StepReport) -> None:
        self._channel.send(StepMessage(report=report))
        self._num_steps_of_epoch += 1
        if self._num_steps_of_epoch == WARM_UP_STEPS and self.trainer is not None:
            self._warm_up = self._samples()
            self.trainer.stopwatch.clear()

    def plan_changed(self, report: ChangeReport) -> None:
        self.send_measured()
        self.epoch = report.epoch
        self._channel.send(ChangeMessage(report=report))

    def stop_requested(self) -> bool:
        """Who has no role takes part in no agreement, so it goes only when it is sent away: the
        others may still be about to give it a role.
        """
        assert self.trainer is not None
        has_role = self._worker in self.trainer.plan.seats
        return self._stop.is_set() if has_role else self.leave.is_set()

    def send_measured(self) -> None:
        """The times of the epoch that ends; of its warm-up where there was nothing else."""
        samples = self._samples() or self._warm_up
        if samples:
            self._channel.send(Measured(epoch=self.epoch, samples=samples))
        if self.trainer is not None:
            self.trainer.stopwatch.clear()
        self._num_steps_of_epoch, self._warm_up = 0, ()

    def _samples(self) -> tuple[Sample, ...]:
        if self.trainer is None:
            return ()
        medians = self.trainer.stopwatch.medians()
        return tuple(Sample(kind, number, seconds) for (kind, number), seconds in medians.items())


def _end(reason: str) -> NoReturn:
    print(reason, flush=True)
    os._exit(1)
