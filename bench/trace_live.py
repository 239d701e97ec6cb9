"""Minutes of random failures, slow-downs and returns: live, and in the simulator beside it.

A trace is drawn from a seed: workers are killed (their processes are started again), nodes are away
for a while, workers are slow for a while. It strikes a job with real processes on emulated devices
(3 replicas x 2 stages, a node per replica). Then the simulator gets the same job, what struck it,
and the costs that the run itself has measured, as `holdfast simulate --run` does.

Goals: the useful throughput of the two differs by at most 3 % (`--quick`, with half a minute of
faults, 12 %: a single step more or less is 2 % there); every decision about a plan is found again
by `holdfast plan replay`; no promise is broken: the run ends equal to an undisturbed one that is
not emulated (float64: 1e-9 relative), its steps follow each other without a gap, all have all
their tokens, and none is done twice, unless a trace takes all replicas within a short time: then a
snapshot is restored, and at most one step for each restore is done again.
"""

import argparse
import contextlib
import io
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from _common import Goal, finish, parse_args
from adapt import difference
from holdfast.cli.plan_replay import replay_decision
from holdfast.cli.simulate_live import RunComparison, compare_run, describe
from holdfast.errors import HoldfastError
from holdfast.observe.events import Event, PlanConsidered, Restored, StepDone
from holdfast.runtime.config.data_sections import DataSection
from holdfast.runtime.config.emulate_sections import EmulateSection
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.job_sections import JobSection
from holdfast.runtime.config.model_sections import ModelSection
from holdfast.runtime.config.parallel_sections import ParallelSection
from holdfast.runtime.config.recovery_sections import DetectSection, RecoverySection
from holdfast.runtime.faults.kinds import Fault
from holdfast.runtime.launch.fork_server import ForkServer
from holdfast.runtime.launch.launcher import run_job
from holdfast.runtime.launch.prepare import prepare_job
from holdfast.runtime.wire.client import ask
from holdfast.runtime.wire.messages import InjectRequest

REPLICAS, STAGES = 3, 2
FOREVER_STEPS = 10**6
TOLERANCE, MAX_DIFFERENCE, QUICK_DIFFERENCE = 1e-9, 0.03, 0.12


@dataclass(frozen=True)
class Scale:
    minutes: float
    """Of faults; calm steps come before."""
    gap_s: float
    """Between two faults, on average."""
    away_s: float
    """Of a lost node."""
    slow_s: tuple[float, float]
    unit_ms: float
    calm_steps: int


FULL = Scale(30.0, gap_s=40.0, away_s=40.0, slow_s=(40.0, 120.0), unit_ms=25.0, calm_steps=24)
SMALL = Scale(0.5, gap_s=8.0, away_s=8.0, slow_s=(8.0, 12.0), unit_ms=10.0, calm_steps=14)


@dataclass(frozen=True)
class Strike:
    at_s: float
    """Since the calm steps ended."""
    fault: Fault


def draw_trace(scale: Scale, seed: int) -> list[Strike]:
    """What is away, or was struck just before, is not struck; one node is away at a time."""
    chance = random.Random(seed)
    found: list[Strike] = []
    busy_until = dict.fromkeys(range(REPLICAS), 0.0)
    settle_s = scale.away_s / 2
    at_s = 0.0
    while (at_s := at_s + chance.expovariate(1 / scale.gap_s)) < 60 * scale.minutes - settle_s:
        free = [node for node, until_s in busy_until.items() if until_s <= at_s]
        kind = chance.choices(("SIGKILL", "SLOW", "NODE_LOSS"), (4, 4, 2))[0]
        if not free or (kind == "NODE_LOSS" and len(free) < REPLICAS):
            continue
        node = chance.choice(free)
        worker = f"n{node}.g{chance.randrange(STAGES)}"
        if kind == "SLOW":
            fault = Fault(
                kind="SLOW",
                target=worker,
                factor=chance.choice((1.5, 2.0, 3.0)),
                duration_s=round(chance.uniform(*scale.slow_s), 1),
            )
            busy_until[node] = at_s + fault.duration_s + settle_s
        elif kind == "NODE_LOSS":
            fault = Fault(kind="NODE_LOSS", target=f"n{node}")
            busy_until[node] = at_s + scale.away_s + settle_s
        else:
            fault = Fault(kind="SIGKILL", target=worker)
            busy_until[node] = at_s + settle_s
        found.append(Strike(round(at_s, 2), fault))
    return found


def make_config(scale: Scale, folder: Path, steps: int = FOREVER_STEPS) -> JobConfig:
    """`steps`: of the undisturbed run, which is not emulated."""
    is_live = steps == FOREVER_STEPS
    return JobConfig(
        job=JobSection(
            steps=steps,
            dtype="float64",
            keep_final=True,
            verify=is_live,
            run_dir=str(folder),
            threads=1,
        ),
        model=ModelSection(num_layers=6),
        data=DataSection(rows=1, seq_len=8, micro_batches=4 * REPLICAS),
        parallel=ParallelSection(
            replicas=REPLICAS if is_live else 1, stages=STAGES, devices_per_node=STAGES
        ),
        recovery=RecoverySection(
            restart_nodes=True,
            restart_nodes_after_s=scale.away_s,
            node_return_s=2 * scale.away_s,
            max_restarts=1000,
        ),
        detect=DetectSection(learn_steps=8),
        emulate=EmulateSection(unit_ms=scale.unit_ms if is_live else 0.0),
    )


class Striker:
    """(OnEvent) Waits for calm steps, then strikes on a thread of its own, then asks for a stop."""

    def __init__(self, run_dir: Path, trace: Sequence[Strike], scale: Scale) -> None:
        self._run_dir, self._trace, self._scale = run_dir, trace, scale
        self._thread = threading.Thread(target=self._strike_all, daemon=True)
        self._over = threading.Event()
        self.steps: list[StepDone] = []
        self.gaps = 0
        """Steps that are missing, repeated or short of tokens."""
        self.restored_s: list[float] = []
        """When, since the calm steps ended."""
        self._begun_s = 0.0
        self._next = 0
        self.considered: list[PlanConsidered] = []
        self.missed: list[str] = []
        """Faults that could not be injected."""

    def __call__(self, event: Event) -> None:
        match event:
            case StepDone():
                self._done(event)
            case Restored(step=step):
                self._next = step
                self.restored_s.append(time.monotonic() - self._begun_s)
            case PlanConsidered():
                self.considered.append(event)

    def _done(self, step: StepDone) -> None:
        self.steps.append(step)
        is_whole = step.tokens == self.steps[0].tokens and step.applied
        self.gaps += step.step != self._next or not is_whole
        self._next = step.step + 1
        if len(self.steps) == self._scale.calm_steps:
            self._thread.start()

    def _strike_all(self) -> None:
        begun_s = self._begun_s = time.monotonic()
        for strike in self._trace:
            if self._over.wait(max(0.0, begun_s + strike.at_s - time.monotonic())):
                return
            try:
                ask(self._run_dir, "inject", InjectRequest(fault=strike.fault))
            except HoldfastError as error:
                self.missed.append(f"{strike.fault.kind} {strike.fault.target}: {error}")
        if not self._over.wait(begun_s + 60 * self._scale.minutes - time.monotonic()):
            os.kill(os.getpid(), signal.SIGTERM)

    def end(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()


@dataclass(frozen=True)
class Outcome:
    seed: int
    strikes: int
    missed: list[str]
    steps: int
    gaps: int
    restores: int
    needless: int
    """Restores while a replica was whole."""
    redone: int
    decisions: int
    not_replayed: int
    difference: float
    """Of the final state, to the undisturbed run."""


def run_trace(scale: Scale, seed: int, folder: Path) -> tuple[Outcome, RunComparison]:
    trace = draw_trace(scale, seed)
    live_dir, calm_dir = folder / "live", folder / "calm"
    with ForkServer() as fork_server:
        striker = Striker(live_dir, trace, scale)
        try:
            job = prepare_job(make_config(scale, live_dir))
            result = run_job(job, on_event=striker, fork_server=fork_server)
        finally:
            striker.end()
        compared = compare_run(live_dir)
        print("\n".join(describe(compared)), flush=True)
        calm = make_config(scale, calm_dir, steps=result.report.next_step)
        run_job(prepare_job(calm), fork_server=fork_server)
    return (
        Outcome(
            seed=seed,
            strikes=len(trace),
            missed=striker.missed,
            steps=len(striker.steps),
            gaps=striker.gaps,
            restores=len(striker.restored_s),
            needless=sum(not all_struck(scale, trace, at_s) for at_s in striker.restored_s),
            redone=result.report.steps_redone,
            decisions=len(striker.considered),
            not_replayed=sum(not is_replayed(live_dir, c.decision) for c in striker.considered),
            difference=difference(calm_dir, live_dir),
        ),
        compared,
    )


def all_struck(scale: Scale, trace: Sequence[Strike], at_s: float) -> bool:
    """Was a worker of every replica killed shortly before, so that it may not be back yet?"""
    deadly = [strike for strike in trace if strike.fault.kind in ("SIGKILL", "NODE_LOSS")]
    recent = [strike for strike in deadly if at_s - 3 * scale.away_s <= strike.at_s <= at_s]
    return len({strike.fault.target.partition(".")[0] for strike in recent}) == REPLICAS


def is_replayed(run_dir: Path, number: int) -> bool:
    with contextlib.redirect_stdout(io.StringIO()):
        return replay_decision(run_dir, number, as_json=True) == 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, help="of faults")
    parser.add_argument("--keep", type=Path, help="keep the run directories below this folder")
    parser.add_argument("--seed", type=int, help="of the trace; drawn and printed if not given")


def main() -> None:
    arguments = parse_args(__doc__, extend=add_arguments)
    scale = SMALL if arguments.quick else FULL
    if arguments.minutes:
        scale = Scale(**asdict(scale) | {"minutes": arguments.minutes})
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(10**6)
    print(f"seed {seed}, {scale.minutes:g} minutes", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        outcome, compared = run_trace(scale, seed, arguments.keep or Path(folder))
    for line in outcome.missed:
        print(f"not injected: {line}")
    print(
        f"{outcome.strikes} faults, {outcome.steps} steps, {outcome.decisions} decisions about "
        f"plans, {outcome.restores} restores, {outcome.redone} steps redone; "
        f"difference of the state {outcome.difference:.1e}"
    )
    limit = QUICK_DIFFERENCE if arguments.quick else MAX_DIFFERENCE
    measured = {"outcome": asdict(outcome), "compared": msgspec.to_builtins(compared)}
    least = 0 if arguments.quick else 1  # a few short faults may leave nothing to decide
    finish(goals(outcome, compared, limit, least), arguments.json, measured)


def goals(outcome: Outcome, compared: RunComparison, limit: float, least: int) -> list[Goal]:
    return [
        Goal("simulated / live - 1", abs(compared.difference), limit),
        Goal("decisions that are not found again", outcome.not_replayed, 0),
        Goal("decisions", outcome.decisions, least, at_most=False),
        Goal("steps missing, repeated or without all tokens", outcome.gaps, 0),
        Goal("restores while a replica was whole", outcome.needless, 0),
        Goal("steps redone", outcome.redone, outcome.restores),
        Goal("largest difference of the state", outcome.difference, TOLERANCE),
        Goal("faults not injected", len(outcome.missed), 0),
    ]


if __name__ == "__main__":
    main()
