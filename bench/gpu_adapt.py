"""Plans of the planner on a GPU: several workers share it, each a host of its own to NCCL.

For every shape the same job runs undisturbed, and with a worker that is lost for good: the step in
flight is completed on what is left, the planner is asked beside the training, and its plan is
entered over NCCL. A third run is the same with `[recovery] plan = "reroute"`, which leaves the plan
as it is.

Goals: a plan of the planner is entered in every shape; every run ends equal to the undisturbed one
(float64: 1e-9 relative); with the planner's plan, the steps that follow take no longer than with
rerouting plus the band between the steps of both runs before the loss (medians). Printed beside
it: from the loss to the first step under the plan, what the change stopped the training for, and
what the planner had predicted. Steps of workers that share a device are not those of workers with
devices of their own: that the plan is faster in such a measure is shown by `adapt.py`.

`--quick`: one shape. Without a GPU it says so and exits with 0.
"""

import statistics
import tempfile
from pathlib import Path
from typing import Literal

import msgspec
import torch

from _common import Goal, finish, parse_args
from _gpu_jobs import TOLERANCE, differences, lines_of, make_config, time_of
from holdfast.observe.run_directory import JOURNAL, METRICS
from holdfast.runtime.config.parallel_sections import ParallelSection
from holdfast.runtime.config.recovery_sections import RecoverySection
from holdfast.runtime.faults.kinds import Fault
from holdfast.runtime.launch.fork_server import ForkServer
from holdfast.runtime.launch.launcher import RunResult, run_job
from holdfast.runtime.launch.prepare import prepare_job

SHAPES = {
    "2 x tensor 2": ParallelSection(replicas=2, tensor=2, devices_per_node=4),
    "2 x 2 stages": ParallelSection(replicas=2, stages=2, devices_per_node=4),
    "3 x 2 stages": ParallelSection(replicas=3, stages=2, devices_per_node=6),
}
QUICK = ("2 x tensor 2",)
STEPS, LOST_AT = 60, 15
WARM_UP_STEPS = 5
"""Of the job, and of an epoch."""
Policy = Literal["auto", "reroute"]


class Case(msgspec.Struct, frozen=True):
    shape: str
    policy: Policy
    difference: float
    before_s: float
    """Median steps, before the loss and under the last plan."""
    after_s: float
    plan: str
    entered: int
    to_plan_s: float
    stall_s: float
    predicted_s: float


def read_case(shape: str, policy: Policy, calm: RunResult, result: RunResult) -> Case:
    run_dir = Path(result.report.run_dir)
    journal, steps = lines_of(run_dir / JOURNAL), lines_of(run_dir / METRICS)
    changed = [line for line in journal if line["event"] == "plan_changed"]
    entered = [line for line in journal if line["event"] == "plan_considered" and line["entered"]]
    recovered = [line for line in journal if line["event"] == "recovered"]
    last = (changed or recovered)[-1]
    (lost,) = [line for line in journal if line["event"] == "fault_injected"]
    before = [s["step_time_s"] for s in steps if WARM_UP_STEPS <= s["step"] < LOST_AT]
    after = [s["step_time_s"] for s in steps if s["step"] >= last["step"] + WARM_UP_STEPS]
    return Case(
        shape=shape,
        policy=policy,
        difference=max(differences(calm, result)),
        before_s=statistics.median(before),
        after_s=statistics.median(after) if after else float("inf"),
        plan=last["shape"],
        entered=len(entered),
        to_plan_s=time_of(last) - time_of(lost),
        stall_s=max((line["stall_s"] for line in changed), default=0.0),
        predicted_s=entered[-1]["step_s"] if entered else 0.0,
    )


def report(case: Case) -> Case:
    print(
        f"{case.shape}, {case.policy}: {case.entered} plans entered, {case.plan}, after "
        f"{case.to_plan_s:.1f} s, stall {case.stall_s:.2f} s; steps {1e3 * case.before_s:.0f} ms "
        f"before, {1e3 * case.after_s:.0f} ms after (predicted {1e3 * case.predicted_s:.0f}); "
        f"largest difference {case.difference:.1e}",
        flush=True,
    )
    return case


def goals_of(ours: Case, reroute: Case) -> list[Goal]:
    band = abs(ours.before_s / reroute.before_s - 1)
    return [
        Goal(f"{ours.shape}: plans of the planner entered", ours.entered, 1, at_most=False),
        Goal(f"{ours.shape}: steps, ours / reroute", ours.after_s / reroute.after_s, 1 + band),
        *(
            Goal(f"{c.shape}, {c.policy}: largest relative difference", c.difference, TOLERANCE)
            for c in (ours, reroute)
        ),
    ]


def main() -> None:
    arguments = parse_args(__doc__)
    if not torch.cuda.is_available():
        print("torch finds no GPU here: nothing was measured")
        return
    goals: list[Goal] = []
    cases: list[Case] = []
    lost = Fault(kind="SIGKILL", target="n0.g1", at_step=LOST_AT)
    with ForkServer() as fork_server, tempfile.TemporaryDirectory() as folder:

        def run(shape: str, policy: Policy, *faults: Fault) -> RunResult:
            name = f"{folder}/{shape} {policy} {len(faults)}"
            config = make_config(name, SHAPES[shape], "nccl", faults, STEPS)
            recovery = RecoverySection(max_restarts=0, plan=policy)
            config = msgspec.structs.replace(config, recovery=recovery)
            return run_job(prepare_job(config), fork_server=fork_server)

        for shape in QUICK if arguments.quick else SHAPES:
            calm = run(shape, "auto")
            ours, reroute = (
                report(read_case(shape, policy, calm, run(shape, policy, lost)))
                for policy in ("auto", "reroute")
            )
            cases += [ours, reroute]
            goals += goals_of(ours, reroute)
    finish(goals, arguments.json, {"cases": msgspec.to_builtins(cases)})


if __name__ == "__main__":
    main()
