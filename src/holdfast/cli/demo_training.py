"""The training of `holdfast demo`: five faults in one run, and the proof that nothing was lost.

The same job runs twice: first undisturbed, at the speed of this machine, then on emulated devices
while a worker becomes slow, a node is lost for a while, the coordinator is killed, a worker hangs
and one is killed. Nodes do not end where replicas do: with its node, one tensor group loses half
of its workers and shrinks, another one all. At the end the two runs are compared, and the
throughput over time is drawn beside what dropping whole replicas would have given.
"""

import time
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from holdfast.cli.demo_throughput import SeenEvent, ThroughputStory, chart_lines, throughput_story
from holdfast.cli.plan_show import make_console, print_json
from holdfast.cli.run_job import progress_on
from holdfast.engine.optimizer_config import OptimizerConfig
from holdfast.observe.events import Event, FaultInjected, PlanConsidered, SlownessJudged
from holdfast.observe.fitting_table import FittingTable
from holdfast.observe.quantities import count, format_seconds
from holdfast.observe.report import RunReport
from holdfast.observe.report_text import describe_outcome, report_lines
from holdfast.runtime.config.data_sections import DataSection
from holdfast.runtime.config.emulate_sections import EmulateSection
from holdfast.runtime.config.emulation import emulation_of
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.job_sections import JobSection
from holdfast.runtime.config.model_sections import ModelSection
from holdfast.runtime.config.parallel_sections import ParallelSection
from holdfast.runtime.config.recovery_sections import DetectSection, RecoverySection
from holdfast.runtime.faults.kinds import Fault
from holdfast.runtime.launch.fork_server import ForkServer
from holdfast.runtime.launch.launcher import RunResult, run_job
from holdfast.runtime.launch.prepare import prepare_job
from holdfast.runtime.record.final_state import read_final

MICRO_BATCHES = 12
UNIT_MS = 20.0
"""Of a block's forward pass on an emulated device."""
AWAY_S = 7.0
"""How long the lost node is away."""
FAULTS = (
    Fault(kind="SLOW", target="n0.g1", at_step=12, factor=2.0, steps=14),
    Fault(kind="NODE_LOSS", target="n1", at_step=38),
    Fault(kind="COORDINATOR_LOSS", at_step=64),
    Fault(kind="SIGSTOP", target="n0.g2", at_step=68),
    Fault(kind="SIGKILL", target="n1.g0", at_step=76),
)


class DemoScript(msgspec.Struct, frozen=True):
    """How long it trains, and what happens meanwhile."""

    num_steps: int
    faults: tuple[Fault, ...]


FULL = DemoScript(84, FAULTS)
SHORT = DemoScript(
    28,
    (
        Fault(kind="COORDINATOR_LOSS", at_step=6),
        Fault(kind="SIGSTOP", target="n0.g2", at_step=9),
        Fault(kind="SIGKILL", target="n1.g0", at_step=18),
    ),
)
TITLES = {
    "SLOW": "a worker is slow",
    "NODE_LOSS": "a node is lost",
    "COORDINATOR_LOSS": "the coordinator is killed",
    "SIGSTOP": "a worker hangs",
    "SIGKILL": "a worker is killed",
}
COLUMNS = 60
"""Of the chart."""
TOLERANCE = 1e-9
"""Relative, of float64 runs whose sums are grouped otherwise."""


class EqualityProof(msgspec.Struct, frozen=True, kw_only=True):
    """The disturbed run beside the undisturbed one."""

    faults: int
    """That really happened."""
    faults_planned: int
    steps: int
    steps_lost: int
    tokens_lost: int
    loss: float
    loss_undisturbed: float
    loss_difference: float
    """The largest over all steps, relative."""
    parameter_difference: float
    """The largest over all parameters, relative to the largest parameter of the tensor."""

    @property
    def holds(self) -> bool:
        lost = self.steps_lost or self.tokens_lost or self.faults < self.faults_planned
        return not lost and max(self.loss_difference, self.parameter_difference) <= TOLERANCE


def demo_config(name: str, num_steps: int, faults: tuple[Fault, ...] = ()) -> JobConfig:
    """With faults on emulated devices, without at the speed of this machine."""
    return JobConfig(
        job=JobSection(
            steps=num_steps, name=name, dtype="float64", verify=True, keep_final=True, threads=1
        ),
        model=ModelSection(num_layers=2),
        data=DataSection(rows=1, seq_len=32, micro_batches=MICRO_BATCHES),
        parallel=ParallelSection(replicas=3, tensor=2, devices_per_node=3),
        optimizer=OptimizerConfig(learning_rate=0.01, warmup_steps=2),
        recovery=RecoverySection(
            plan="auto" if faults else "reroute",
            restart_nodes=True,
            restart_nodes_after_s=AWAY_S,
            node_return_s=2 * AWAY_S,
        ),
        detect=DetectSection(learn_steps=6),
        emulate=EmulateSection(unit_ms=UNIT_MS if faults else 0.0),
        faults=faults,
    )


def train(script: DemoScript, *, as_json: bool) -> int:
    console = make_console()
    seen: list[SeenEvent] = []
    with ForkServer() as fork_server:
        calm = _run(
            demo_config("demo-calm", script.num_steps), fork_server, None if as_json else console
        )
        if not as_json:
            words = f"... then on emulated devices, with {count(len(script.faults), 'fault')}:"
            console.print(Text(words, style="bold"))
        disturbed = demo_config("demo", script.num_steps, script.faults)
        result = _run(disturbed, fork_server, None if as_json else console, seen)
    events = [one.event for one in seen]
    proof = prove(calm, result, events, len(script.faults))
    story = _story(disturbed, seen)
    if as_json:
        print_json({"proof": proof, "throughput": story, "report": result.report})
    else:
        _conclude(console, result.report, proof, story, events)
    return result.exit_code or (0 if proof.holds else 1)


def _story(config: JobConfig, seen: list[SeenEvent]) -> ThroughputStory:
    emulation = emulation_of(config)
    assert emulation is not None
    return throughput_story(seen, prepare_job(config).plans[0].plan, emulation.profile, COLUMNS)


def _run(
    config: JobConfig,
    fork_server: ForkServer,
    console: Console | None,
    seen: list[SeenEvent] | None = None,
) -> RunResult:
    """Shown on the console, if there is one, and kept in `seen`."""
    job, told = prepare_job(config), seen if seen is not None else []

    def keep(event: Event) -> None:
        told.append(SeenEvent(time.monotonic(), event))

    if console is None:
        return run_job(job, on_event=keep, fork_server=fork_server)
    with progress_on(console, job.plans[0].plan) as view:

        def on_event(event: Event) -> None:
            keep(event)
            view(event)

        return run_job(job, on_event=on_event, fork_server=fork_server)


def prove(
    calm: RunResult, result: RunResult, events: list[Event], faults_planned: int
) -> EqualityProof:
    ours = read_final(Path(result.report.run_dir))
    theirs = read_final(Path(calm.report.run_dir))
    differences = [
        float((ours[name] - theirs[name]).abs().max() / theirs[name].abs().max()) for name in theirs
    ]
    losses = {step.step: step.loss or 0.0 for step in result.steps}
    calm_losses = {step.step: step.loss or 0.0 for step in calm.steps}
    return EqualityProof(
        faults=len({(e.fault, e.target) for e in events if isinstance(e, FaultInjected)}),
        faults_planned=faults_planned,
        steps=len(losses),
        steps_lost=len(calm_losses) - len(losses.keys() & calm_losses.keys()),
        tokens_lost=calm.report.tokens - result.report.tokens,
        loss=losses[max(losses)],
        loss_undisturbed=calm_losses[max(calm_losses)],
        loss_difference=max(
            abs(losses[step] - loss) / abs(loss)
            for step, loss in calm_losses.items()
            if step in losses
        ),
        parameter_difference=max(differences),
    )


def _conclude(
    console: Console,
    report: RunReport,
    proof: EqualityProof,
    story: ThroughputStory,
    events: list[Event],
) -> None:
    console.print()
    console.print(_faults_table(report, events))
    console.print(
        f"Throughput on emulated devices, full bars as before the first fault, a column of "
        f"{story.column_s:.1f} s:"
    )
    for line in chart_lines(story):
        console.print(line, markup=False, soft_wrap=True)
    word = "equal" if proof.holds else "NOT EQUAL"
    for line in (
        f"faults: {proof.faults}; steps lost: {proof.steps_lost} of {proof.steps}; "
        f"samples lost: {proof.tokens_lost} tokens",
        f"final loss: {proof.loss:.12f}, undisturbed {proof.loss_undisturbed:.12f}",
        f"largest relative difference: losses {proof.loss_difference:.1e}, "
        f"parameters {proof.parameter_difference:.1e} (float64, allowed {TOLERANCE:.0e}): {word}",
        *report_lines(report),
        f"Everything about it is in {report.run_dir}; holdfast report shows it again",
    ):
        console.print(Text(line))


def _slow_row(events: list[Event]) -> tuple[str, ...] | None:
    """What became of the slow worker; nothing was stalled by it."""
    slow = [e for e in events if isinstance(e, FaultInjected) and e.fault == "SLOW"]
    if not slow:
        return None
    fault = slow[0]
    judged = [e for e in events if isinstance(e, SlownessJudged) and fault.target in e.who]
    words: list[str] = []
    whole = "not yet"
    for verdict, text in (("slow", "named and probed"), ("recovered", "taken back")):
        found = [e for e in judged if e.verdict == verdict]
        if found:
            words.append(f"{text} after {count(found[0].step - fault.step, 'step')}")
            whole = words[-1] if verdict == "recovered" else whole
    plans = [e for e in events if isinstance(e, PlanConsidered) and fault.target in e.asked]
    words[1:1] = [f"planner: {e.strategy}" for e in plans if e.entered][:1]
    title = f"{TITLES[fault.fault]} ({fault.target})"
    return title, str(fault.step), "-", "; ".join(words) or "not found", whole


def _faults_table(report: RunReport, events: list[Event]) -> FittingTable:
    """Per incident, what followed; the same numbers as in report.json."""
    slow = _slow_row(events)
    rows: list[tuple[str, ...]] = [slow] if slow is not None else []
    for incident in report.incidents:
        faults = [fault.partition(" ") for fault in incident.faults if "SLOW" not in fault]
        title = "; ".join(f"{TITLES.get(kind, kind)} ({target})" for kind, _, target in faults)
        whole = incident.whole_after_s
        row = (
            title or incident.what,
            str(incident.step),
            format_seconds(incident.stall_s),
            describe_outcome(incident),
            "not yet" if whole is None else format_seconds(whole),
        )
        rows.append(row)
    columns = ("fault", "in step", "stall", "what happened", "whole again after")
    return FittingTable(columns, rows, numbers=["in step", "stall"])
