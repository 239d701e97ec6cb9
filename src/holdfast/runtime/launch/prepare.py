"""From a job file's words to what runs: model, data, and every plan the job will go through.

Whatever can be refused is refused here, before any process starts: all plans are checked and
dry-run, all changes between them planned, the data opened. It needs no torch unless the job is for
CUDA or goes on from a checkpoint of another program, so a wrong job is refused at once.
"""

import re
from collections.abc import Sequence
from math import prod
from pathlib import Path

import msgspec

from holdfast.control.worker_reports import Planned
from holdfast.data.preparation import OnProgress
from holdfast.engine.runnable import check_runnable
from holdfast.errors import HoldfastError
from holdfast.observe.run_directory import checkpoint_folder
from holdfast.plan.build import regular_plan
from holdfast.plan.check import check_plan
from holdfast.plan.copies import with_redundancy
from holdfast.plan.plan import EXPLICIT, Plan, Schedule
from holdfast.plan.text import parse_plan
from holdfast.plan.transition import Transition, plan_transition
from holdfast.plan.units import TensorSpec, Unit
from holdfast.plan.workers import node_of
from holdfast.runtime.config.data_source import with_prepared
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.model_source import check_tensor_degrees, model_units
from holdfast.runtime.config.parallel_sections import ChangeSection, ParallelSection
from holdfast.runtime.config.settings import AUTO
from holdfast.runtime.faults.injector import place_faults
from holdfast.runtime.launch.addresses import check_address
from holdfast.runtime.launch.check_settings import check_data, check_rows, check_settings
from holdfast.runtime.launch.job import Job
from holdfast.runtime.launch.job_state import JobState, state_of_job, with_state
from holdfast.runtime.launch.resume import (
    check_data_goes_on,
    check_goes_on,
    check_same_model,
    check_same_tensors,
    earlier_job,
)
from holdfast.snapshot.disk.checkpoints import choose_checkpoint

MAX_WORKERS = 4096


def prepare_job(
    config: JobConfig, *, tokenise: bool = True, on_progress: OnProgress | None = None
) -> Job:
    """Everything the job needs, checked; HoldfastError says in one line why it cannot run.

    Text that has not been tokenised is, unless that is left out: such a job can be looked at only.
    """
    units = model_units(config)
    plans: list[Planned] = []
    for place, at_step, section in _places(config):
        try:
            count = plans[0].plan.num_micro_batches if plans else config.data.micro_batches
            plans.append(Planned(at_step, build_plan(section, units, count, state_of_job(config))))
        except HoldfastError as error:
            raise HoldfastError(f"{place}: {error}") from None
    return _checked_job(config, plans, tokenise=tokenise, on_progress=on_progress)


def make_job(config: JobConfig, plans: Sequence[Planned]) -> Job:
    """A job from plans that were made otherwise; what the config says of plans is not asked."""
    first, *later = [
        ParallelSection(plan=f"the plan from step {planned.at_step} on") for planned in plans
    ]
    changes = tuple(
        ChangeSection(at_step=planned.at_step, parallel=section)
        for planned, section in zip(plans[1:], later, strict=True)
    )
    config = msgspec.structs.replace(config, parallel=first, changes=changes)
    fitted = [Planned(p.at_step, with_state(p.plan, state_of_job(config))) for p in plans]
    return _checked_job(config, fitted)


def _checked_job(
    config: JobConfig,
    plans: list[Planned],
    *,
    tokenise: bool = True,
    on_progress: OnProgress | None = None,
) -> Job:
    check_settings(config)
    check_goes_on(config)
    _check_steps(config, plans)
    transitions: list[Transition] = []
    for number, planned in enumerate(plans):
        place = f"the plan from step {planned.at_step} on"
        try:
            check_tensor_degrees(config, {stage.tensor for stage in planned.plan.stages})
            check_plan(planned.plan)
            check_runnable(planned.plan)
            if number:
                transitions.append(plan_transition(plans[number - 1].plan, planned.plan))
        except HoldfastError as error:
            raise HoldfastError(f"{place}: {error}") from None
    _check_batches(plans)
    first = plans[0].plan
    check_data(config, first.num_micro_batches)
    config = with_prepared(config, make=tokenise, on_progress=on_progress)
    check_rows(config, first.num_micro_batches)
    check_data_goes_on(config, first.num_micro_batches)
    job = Job(config, tuple(plans), tuple(transitions), _first_step(config, plans))
    if len(job.workers) > MAX_WORKERS:
        raise HoldfastError(
            f"job.spares = {config.job.spares} makes {len(job.workers)} workers; a job on one "
            f"machine has {MAX_WORKERS} at most"
        )
    place_faults(config.faults, first, config.job.seed, job.workers)
    _check_hosts(job)
    return job


def _check_hosts(job: Job) -> None:
    net, nodes = job.config.net, sorted(set(map(node_of, job.workers)))
    if net.rendezvous:
        check_address(net.address)
        if not job.config.job.run_dir:  # that of a directory is the directory itself
            raise HoldfastError(
                f"net.rendezvous = {net.rendezvous!r} needs job.run_dir: a directory that all "
                f"hosts share, under the same path"
            )
    elif net.nodes or net.min_nodes:
        raise HoldfastError(
            f"net.nodes = {net.nodes or net.min_nodes} hosts need a place to meet: "
            f"net.rendezvous = 'dir:PATH' or 'etcd://HOST:PORT/NAME'"
        )
    elif net.address or net.interface:
        key, value = ("address", net.address) if net.address else ("interface", net.interface)
        raise HoldfastError(
            f"net.{key} = {value!r} is for jobs on several hosts, which meet in a net.rendezvous; "
            f"on one machine it is job.host"
        )
    if net.min_nodes > len(nodes):
        raise HoldfastError(
            f"net.min_nodes = {net.min_nodes} hosts to begin with, and the plan has {len(nodes)} "
            f"nodes"
        )
    if net.nodes not in (0, len(nodes)):
        raise HoldfastError(
            f"net.nodes = {net.nodes}, and the plan has {len(nodes)} nodes ({nodes[0]} .. "
            f"{nodes[-1]}): change parallel.devices_per_node, or leave net.nodes out"
        )


def _places(config: JobConfig) -> list[tuple[str, int, ParallelSection]]:
    """(how to name it in an error, first step, what the file says) of every plan."""
    first = ("[parallel]", 0, config.parallel)
    changes = [
        (f"[[change]] at step {change.at_step}", change.at_step, change.parallel)
        for change in config.changes
    ]
    return [first, *changes]


def _check_steps(config: JobConfig, plans: list[Planned]) -> None:
    previous = -1
    for planned in plans:
        if planned.at_step <= previous:
            raise HoldfastError(
                f"[[change]] at step {planned.at_step} comes after the one at step {previous}: "
                f"steps must rise"
            )
        previous = planned.at_step
    if previous >= config.job.steps:
        raise HoldfastError(
            f"[[change]] at step {previous} never happens: the job ends after step "
            f"{config.job.steps - 1}"
        )


def _first_step(config: JobConfig, plans: list[Planned]) -> int:
    """Where an earlier run is taken up; its checkpoint is whole, or the job is refused."""
    if config.job.resume in ("", AUTO):
        return 0
    earlier = earlier_job(config.job.resume)
    if earlier is not None:
        check_same_model(config, earlier, f"job.resume = {config.job.resume!r}")
    found = choose_checkpoint(checkpoint_folder(config.job.resume), config.snapshot.load_step)
    if earlier is None:
        check_same_tensors(config, found, plans[0].plan)
    step = found.version.step
    if step >= config.job.steps:
        raise HoldfastError(f"{found.path}: job.steps = {config.job.steps}, nothing is left to do")
    if len(plans) > 1 and plans[1].at_step <= step:
        raise HoldfastError(
            f"{found.path} is after the [[change]] at step {plans[1].at_step}: begin with the plan "
            f"in force there, in [parallel]"
        )
    return step


def _check_batches(plans: list[Planned]) -> None:
    first = plans[0].plan.num_micro_batches
    for planned in plans:
        if planned.plan.num_micro_batches != first:
            raise HoldfastError(
                f"the plan from step {planned.at_step} on has {planned.plan.num_micro_batches} "
                f"micro-batches, the first {first}: a step trains the same ones under every plan"
            )


# Plans.


def build_plan(
    section: ParallelSection, units: tuple[Unit, ...], num_micro_batches: int, state: JobState
) -> Plan:
    """`num_micro_batches` 0: as many as the plan wants."""
    if section.plan:
        plan = _plan_from_file(section, units)
    else:
        plan = _plan_from_degrees(section, units, num_micro_batches)
    if num_micro_batches and plan.num_micro_batches != num_micro_batches:
        raise HoldfastError(
            f"{section.plan} has {plan.num_micro_batches} micro-batches, the job "
            f"{num_micro_batches}: a step trains the same ones under every plan"
        )
    return with_state(plan, state)


def _plan_from_degrees(section: ParallelSection, units: tuple[Unit, ...], count: int) -> Plan:
    if section.schedule == EXPLICIT:
        raise HoldfastError("an explicit schedule has one line per worker: write it in a plan file")
    degrees = (section.replicas, section.stages, section.tensor, section.shard)
    if prod(degrees) > MAX_WORKERS:
        raise HoldfastError(
            f"{' x '.join(map(str, degrees))} are {prod(degrees)} workers; a job on one machine "
            f"has {MAX_WORKERS} at most"
        )
    plan = regular_plan(
        units,
        replicas=section.replicas,
        stages=section.stages,
        tensor=section.tensor,
        shard=section.shard,
        virtual=section.virtual,
        micro_batches=count or None,
        schedule=Schedule(
            section.schedule,
            extra_in_flight=section.extra_in_flight,
            recompute=section.recompute,
            reshard=section.reshard,
        ),
        split=_split(section.split),
        devices_per_node=section.devices_per_node,
    )
    return with_redundancy(plan) if section.redundancy else plan


def _split(split: str | tuple[int, ...]) -> str | tuple[int, ...]:
    if isinstance(split, str) and re.fullmatch(r"\d+(\s*,\s*\d+)*", split):
        return tuple(int(number) for number in split.split(","))
    return split


def _plan_from_file(section: ParallelSection, units: tuple[Unit, ...]) -> Plan:
    others = _given_beside_plan(section)
    if others:
        raise HoldfastError(
            f"plan = {section.plan!r} and {', '.join(others)} contradict each other: the file "
            f"already says it; leave one out"
        )
    path = Path(section.plan)
    try:
        plan = parse_plan(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise HoldfastError(f"{path}: not a text file") from None
    except OSError as error:
        raise HoldfastError(f"{path}: {error.strerror}") from None
    except HoldfastError as error:
        raise HoldfastError(f"{path}: {error}") from None
    _check_units(path, plan.units, units)
    # Costs are those of this job's model and data, and equal in all its plans.
    return msgspec.structs.replace(plan, units=units)


def _given_beside_plan(section: ParallelSection) -> list[str]:
    given, default = msgspec.structs.asdict(section), msgspec.structs.asdict(ParallelSection())
    return [
        f"{name} = {value!r}"
        for name, value in given.items()
        if name != "plan" and value != default[name]
    ]


def _check_units(path: Path, found: tuple[Unit, ...], units: tuple[Unit, ...]) -> None:
    """A plan without units is for any model; one with units must be for this one."""
    if not found:
        return
    if len(found) != len(units):
        raise HoldfastError(
            f"{path} is for a model of {len(found)} units ({found[0].name} .. {found[-1].name}), "
            f"the job's has {len(units)} ({units[0].name} .. {units[-1].name})"
        )
    for theirs, ours in zip(found, units, strict=True):
        if (theirs.name, _shapes(theirs)) != (ours.name, _shapes(ours)):
            raise HoldfastError(
                f"{path} is for another model: its unit {_describe(theirs)} is "
                f"{_describe(ours)} in the job"
            )


def _shapes(unit: Unit) -> list[TensorSpec]:
    """What is kept of a tensor is a matter of the job."""
    return [msgspec.structs.replace(tensor, state=None) for tensor in unit.tensors]


def _describe(unit: Unit) -> str:
    return f"{unit.name} ({unit.num_parameters} parameters in {len(unit.tensors)} tensors)"
