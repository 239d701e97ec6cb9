"""One worker process: gets its assignment, trains, reports, leaves when it is told to.

Forked from the template, so everything is imported. The main thread trains; a second one listens
for orders. If the launcher is gone, the worker ends at once.
"""

import os
import socket
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress

import torch

from holdfast.engine.groups import GroupBroken, first_line
from holdfast.engine.measure import Probe, Sample, make_profile, unit_costs
from holdfast.engine.trainer import ChangeReport, StepReport, Trainer
from holdfast.errors import HoldfastError, InternalError
from holdfast.job.config import JobConfig
from holdfast.job.final import write_final
from holdfast.job.prepare import make_data, make_model, trainer_config
from holdfast.job.store import connect_store
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
    return Failed(line=line, is_consequence=isinstance(error, GroupBroken))


def _train(assignment: Assignment, channel: Channel) -> None:
    torch.set_num_threads(assignment.num_threads)
    config = assignment.config
    reporter = WorkerReporter(assignment, channel, _end_at_once)
    store = connect_store(assignment.store_host, assignment.store_port)
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
    reporter.send_measured(probe=next_step == config.job.steps)
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

    def __init__(
        self, assignment: Assignment, channel: Channel, on_gone: Callable[[], object]
    ) -> None:
        """`on_gone` is called, on another thread, when the launcher is not there any more."""
        self._worker, self._channel, self._on_gone = assignment.worker, channel, on_gone
        self._plans = [planned.plan for planned in assignment.plans]
        self.trainer: Trainer | None = None
        self.epoch = 0
        self._num_steps_of_epoch = 0
        self._warm_up: dict[Sample, list[float]] = {}
        self.stop = threading.Event()
        self.leave = threading.Event()
        threading.Thread(target=self._listen, daemon=True, name="orders").start()

    def _listen(self) -> None:
        with suppress(OSError, WireError):
            while (order := self._channel.receive()) is not None:
                match order:
                    case Stop():
                        self.stop.set()
                    case Leave():
                        self.leave.set()
        self._on_gone()

    def step_done(self, report: StepReport) -> None:
        self._channel.send(StepMessage(report=report))
        self._num_steps_of_epoch += 1
        if self._num_steps_of_epoch == WARM_UP_STEPS and self.trainer is not None:
            self._warm_up = dict(self.trainer.stopwatch.samples)
            self.trainer.stopwatch.clear()

    def plan_changed(self, report: ChangeReport) -> None:
        self.send_measured(probe=False)
        self.epoch = report.epoch
        self._channel.send(ChangeMessage(report=report))

    def stop_requested(self) -> bool:
        """Who has no role takes part in no agreement, so it goes only when it is sent away: the
        others may still be about to give it a role.
        """
        assert self.trainer is not None
        has_role = self._worker in self.trainer.plan.seats
        return self.stop.is_set() if has_role else self.leave.is_set()

    def send_measured(self, *, probe: bool) -> None:
        """The times of the epoch that ends; of its warm-up where there was nothing else.

        Probing links takes everybody with a role, so all of them must want it, or none.
        """
        plan, trainer = self._plans[self.epoch], self.trainer
        if trainer is None or self._worker not in plan.seats:
            return
        if not trainer.stopwatch.samples:
            trainer.stopwatch.samples.update(self._warm_up)
        if probe:
            profile = trainer.profile()
        else:
            medians = trainer.stopwatch.medians()
            costs = unit_costs(medians, plan)
            profile = make_profile(costs, medians, Probe(), plan, self._worker)
        self._channel.send(Measured(epoch=self.epoch, profile=profile))
        trainer.stopwatch.clear()
        self._num_steps_of_epoch, self._warm_up = 0, {}


def _end_at_once() -> None:
    print("the launcher is gone", flush=True)
    os._exit(1)
