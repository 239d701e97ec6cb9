"""What `holdfast status` and `holdfast inject` do."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from holdfast.cli.plan_show import print_json
from holdfast.errors import HoldfastError
from holdfast.observe.quantities import count, describe_protection
from holdfast.observe.report import RunReport
from holdfast.observe.report_text import report_lines
from holdfast.observe.run_directory import REPORT
from holdfast.runtime.config.settings import nearest
from holdfast.runtime.coordinator.status import Status
from holdfast.runtime.faults.kinds import FAULT_KINDS, Fault
from holdfast.runtime.wire.client import NotRunning, ask
from holdfast.runtime.wire.messages import (
    Done,
    InjectRequest,
    StatusReply,
    StatusRequest,
    StopJob,
    ToClient,
)


def show_status(run_dir: Path, *, as_json: bool) -> None:
    try:
        reply = ask(run_dir, "status", StatusRequest())
    except NotRunning:
        _show_end(run_dir, as_json=as_json)
        return
    if not isinstance(reply, StatusReply):
        raise HoldfastError(f"{run_dir}: {reply.text}")
    status = msgspec.json.decode(reply.status, type=Status)
    if as_json:
        print_json(status)
    else:
        print("\n".join(describe_status(status)))


def _show_end(run_dir: Path, *, as_json: bool) -> None:
    path = run_dir / REPORT
    if not path.is_file():
        raise HoldfastError(f"{run_dir}: no coordinator answers and there is no report: killed")
    report = msgspec.json.decode(path.read_bytes(), type=RunReport)
    if as_json:
        print_json(report)
    else:
        print("\n".join(["not running", *report_lines(report)]))


def describe_status(status: Status) -> list[str]:
    loss = "" if status.loss is None else f", loss {status.loss:.4f}"
    change = f", change {status.change} under way" if status.change else ""
    lines = [
        f"{status.name}: {status.step} of {count(status.num_steps, 'step')} done{loss}",
        f"epoch {status.epoch}: {status.shape}{change}",
        f"{count(len(status.nodes), 'node')} connected, coordinator number {status.term}",
    ]
    if status.slow:
        slow = ", ".join(f"{name} ({factor:.2f} times)" for name, factor in status.slow.items())
        lines.append(f"slow: {slow}")
    if status.emulated:
        lines.append("devices and links are emulated: times are theirs, not this machine's")
    if status.protected_against or status.not_protected_against:
        lines.append(describe_protection(status.protected_against, status.not_protected_against))
    if status.num_refused:
        lines.append(f"{count(status.num_refused, 'connection')} refused")
    if status.missing:
        lines.append(f"not there: {', '.join(status.missing)}")
    for worker in status.workers:
        place = f"step {worker.step + 1}, action {worker.action}" if worker.step >= 0 else ""
        name = f"{worker.name}#{worker.incarnation}"
        lines.append(
            f"  {name:<10} {worker.role or '-':<10} {worker.doing:<9} pid {worker.pid:<8} {place}"
        )
    if status.decisions:
        lines += ["lately:", *(f"  {line}" for line in status.decisions)]
    return [line.rstrip() for line in lines]


def inject_fault(run_dir: Path, kind: str, given: Mapping[str, object]) -> str:
    """What was done; `given`: other fields of a fault."""
    if kind not in FAULT_KINDS:
        raise HoldfastError(f"{kind!r} is no fault; {nearest(kind.upper(), FAULT_KINDS)}")
    try:
        fault = msgspec.convert({"kind": kind, **given}, Fault)
    except (msgspec.ValidationError, HoldfastError) as error:
        raise HoldfastError(f"{kind}: {error}") from None
    try:
        reply = ask(run_dir, "inject", InjectRequest(fault=fault))
    except NotRunning:
        if kind != "COORDINATOR_LOSS":
            raise
        return "COORDINATOR_LOSS: it is gone"
    return _told(reply)


def stop_job(run_dir: Path) -> str:
    """What was done."""
    return _told(ask(run_dir, "stop", StopJob()))


def _told(reply: ToClient) -> str:
    if not isinstance(reply, Done) or not reply.ok:
        raise HoldfastError(reply.text if isinstance(reply, Done) else "no answer to that")
    return reply.text
