"""The training of `holdfast demo`: four faults in one run, and the proof that nothing was lost.

The same job runs twice: first undisturbed, then with a worker killed, a node killed, the
coordinator killed and a worker that hangs. At the end the two are compared.
"""

from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.cli.plan_show import make_console, print_json
from holdfast.engine.optimizer_config import OptimizerConfig
from holdfast.observe.crew_view import LiveCrew
from holdfast.observe.events import Event, FaultInjected
from holdfast.observe.quantities import format_seconds
from holdfast.observe.report import RunReport
from holdfast.observe.report_text import describe_outcome, report_lines
from holdfast.runtime.config.job_file import (
    DataSection,
    JobConfig,
    JobSection,
    ParallelSection,
    RecoverySection,
)
from holdfast.runtime.faults.kinds import Fault
from holdfast.runtime.launch.fork_server import ForkServer
from holdfast.runtime.launch.launcher import RunResult, run_job
from holdfast.runtime.launch.prepare import prepare_job
from holdfast.runtime.record.final_state import read_final

NUM_STEPS = 60
MICRO_BATCHES = 6
FAULTS = (
    Fault(kind="SIGKILL", target="n1.g0", at_step=8),
    Fault(kind="NODE_LOSS", target="n2", at_step=20),
    Fault(kind="COORDINATOR_LOSS", at_step=32),
    Fault(kind="SIGSTOP", target="n0.g1", at_step=44),
)
TITLES = {
    "SIGKILL": "a worker is killed",
    "NODE_LOSS": "a node is lost",
    "COORDINATOR_LOSS": "the coordinator is killed",
    "SIGSTOP": "a worker hangs",
}
TOLERANCE = 1e-9
"""Relative, of float64 runs whose sums are grouped otherwise."""


class EqualityProof(msgspec.Struct, frozen=True, kw_only=True):
    """The disturbed run beside the undisturbed one."""

    faults: int
    """That really happened."""
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
        lost = self.steps_lost or self.tokens_lost or self.faults < len(FAULTS)
        return not lost and max(self.loss_difference, self.parameter_difference) <= TOLERANCE


def demo_config(name: str, faults: tuple[Fault, ...] = ()) -> JobConfig:
    return JobConfig(
        job=JobSection(
            steps=NUM_STEPS, name=name, dtype="float64", verify=True, keep_final=True, threads=1
        ),
        data=DataSection(rows=2, seq_len=32, micro_batches=MICRO_BATCHES),
        parallel=ParallelSection(replicas=3, stages=2, devices_per_node=2),
        optimizer=OptimizerConfig(learning_rate=0.01, warmup_steps=2),
        recovery=RecoverySection(restart_nodes=True),
        faults=faults,
    )


def train(*, as_json: bool) -> int:
    console = make_console()
    with ForkServer() as fork_server:
        if not as_json:
            console.print(Text("The same job twice: first undisturbed ...", style="bold"))
        calm = run_job(prepare_job(demo_config("demo-calm")), fork_server=fork_server)
        disturbed = prepare_job(demo_config("demo", FAULTS))
        events: list[Event] = []
        if as_json:
            result = run_job(disturbed, on_event=events.append, fork_server=fork_server)
        else:
            console.print(Text("... then with four faults:", style="bold"))
            with LiveCrew(console, disturbed.plans[0].plan) as view:

                def on_event(event: Event) -> None:
                    events.append(event)
                    view(event)

                result = run_job(disturbed, on_event=on_event, fork_server=fork_server)
    proof = prove(calm, result, events)
    if as_json:
        print_json({"proof": proof, "report": result.report})
    else:
        _conclude(console, result.report, proof)
    return result.exit_code or (0 if proof.holds else 1)


def prove(calm: RunResult, result: RunResult, events: list[Event]) -> EqualityProof:
    ours = read_final(Path(result.report.run_dir))
    theirs = read_final(Path(calm.report.run_dir))
    differences = [
        float((ours[name] - theirs[name]).abs().max() / theirs[name].abs().max()) for name in theirs
    ]
    losses = {step.step: step.loss or 0.0 for step in result.steps}
    calm_losses = {step.step: step.loss or 0.0 for step in calm.steps}
    return EqualityProof(
        faults=sum(isinstance(event, FaultInjected) for event in events),
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


def _conclude(console: Console, report: RunReport, proof: EqualityProof) -> None:
    console.print()
    console.print(_faults_table(report))
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


def _faults_table(report: RunReport) -> Table:
    """Per incident, what followed; the same numbers as in report.json."""
    table = Table("fault", "in step", "stall", "what happened", "whole again after")
    for incident in report.incidents:
        faults = [fault.partition(" ") for fault in incident.faults]
        title = "; ".join(f"{TITLES.get(kind, kind)} ({target})" for kind, _, target in faults)
        whole = incident.whole_after_s
        table.add_row(
            title or incident.what,
            str(incident.step),
            format_seconds(incident.stall_s),
            describe_outcome(incident),
            "not yet" if whole is None else format_seconds(whole),
        )
    return table
