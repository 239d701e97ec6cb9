"""What `holdfast plan check` and `holdfast plan diff` do."""

from pathlib import Path
from typing import Any

from holdfast.cli.plan_inputs import read_plan, read_profile
from holdfast.cli.plan_show import print_json
from holdfast.errors import HoldfastError
from holdfast.observe.plan_diff import describe_changes, describe_transition, transition_numbers
from holdfast.observe.quantities import count, format_bytes, format_share, format_time
from holdfast.observe.timeline_view import describe_micro_batches, describe_shape
from holdfast.plan.check import check_plan, check_shape
from holdfast.plan.memory import device_memory
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Profile
from holdfast.plan.timeline import evaluate
from holdfast.plan.transition import plan_transition


def check_file(path: Path, profile_path: Path | None, *, as_json: bool) -> None:
    try:
        plan = read_plan(path)
        profile = read_profile(profile_path) if profile_path else Profile()
        _checked(path, plan, profile)
    except HoldfastError as error:
        if as_json:
            print_json({"ok": False, "error": str(error)})
        raise
    numbers = _summary(plan, profile)
    if as_json:
        print_json({"ok": True, **numbers})
    else:
        print(f"ok: {path}: {_words(plan, profile, numbers)}")


def _checked(path: Path, plan: Plan, profile: Profile) -> None:
    try:
        check_plan(plan, profile)
    except HoldfastError as error:
        raise HoldfastError(f"{path}: {error}") from None


def _summary(plan: Plan, profile: Profile) -> dict[str, Any]:
    timeline = evaluate(plan, profile)
    return {
        "workers": len(plan.workers),
        "replicas": len(plan.replicas),
        "stages": len(plan.stages),
        "units": len(plan.units),
        "micro_batches": plan.num_micro_batches,
        "schedule": plan.schedule.kind,
        "iteration_time": timeline.iteration_time,
        "bubble_fraction": timeline.bubble_fraction,
        "costs": profile.source,
        "memory_bytes": max(use.total for use in device_memory(timeline).values()),
    }


def _words(plan: Plan, profile: Profile, numbers: dict[str, Any]) -> str:
    return ", ".join(
        [
            count(numbers["workers"], "worker"),
            describe_shape(plan),
            describe_micro_batches(plan),
            plan.schedule.kind,
            f"iteration time {format_time(numbers['iteration_time'])} ({profile.source} costs)",
            f"bubble share {format_share(numbers['bubble_fraction'])}",
            f"up to {format_bytes(numbers['memory_bytes'])} a device",
        ]
    )


def diff_files(old_path: Path, new_path: Path, dead: tuple[str, ...], *, as_json: bool) -> None:
    old, new = _complete(old_path), _complete(new_path)
    gone = dict.fromkeys(worker for pattern in dead for worker in old.select(pattern))
    changes = describe_changes(old, new)
    try:
        transition = plan_transition(old, new, tuple(gone))
    except HoldfastError as error:
        _refuse(changes, error, as_json=as_json)
        raise
    times = [evaluate(plan).iteration_time for plan in (old, new)]
    if as_json:
        numbers = transition_numbers(transition)
        print_json({"changes": changes, "iteration_time": times, "transition": numbers})
        return
    lines = changes or ["the plans are equal"]
    before, after = map(format_time, times)
    if before != after:
        lines.append(f"iteration time {before} -> {after} (assumed costs)")
    print("\n".join([*lines, *describe_transition(transition, new)]))


def _complete(path: Path) -> Plan:
    plan = read_plan(path)
    try:
        check_shape(plan)
    except HoldfastError as error:
        raise HoldfastError(f"{path}: {error}") from None
    return plan


def _refuse(changes: list[str], error: HoldfastError, *, as_json: bool) -> None:
    """What differs is still worth knowing where there is no way from one to the other."""
    if as_json:
        print_json({"changes": changes, "error": str(error)})
    elif changes:
        print("\n".join(changes))
