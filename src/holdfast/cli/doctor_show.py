"""What `holdfast doctor` does: collect what was found out, and show it."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.text import Text

from holdfast.cli import doctor_devices, doctor_host
from holdfast.cli.doctor_check import Check, failed, ok
from holdfast.cli.plan_show import make_console, print_json
from holdfast.errors import HoldfastError

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def examine(file: Path | None, *, as_json: bool) -> int:
    checks = all_checks(file)
    if as_json:
        found = list(checks)
        print_json({"ok": not _has_failed(found), "checks": found})
        return int(_has_failed(found))
    console, found = make_console(), []
    for check in checks:
        found.append(check)
        line = Text(f"{check.level:<5}", style=_STYLES[check.level])
        line.append(f"{check.name:<16}{check.found}", style="default")
        console.print(line, soft_wrap=True)
        if check.remedy:
            console.print(f"{'':21}{check.needed}; {check.remedy}", soft_wrap=True, markup=False)
    return int(_has_failed(found))


def _has_failed(checks: Iterable[Check]) -> bool:
    return any(check.level == "fail" for check in checks)


def all_checks(file: Path | None) -> Iterator[Check]:
    yield from doctor_host.checks(Path.cwd())
    yield from doctor_devices.checks()
    if file is not None:
        yield from _job_checks(file)


def _job_checks(file: Path) -> Iterator[Check]:
    """What a start of this job would say."""
    from holdfast.runtime.config.settings import read_config
    from holdfast.runtime.launch.check_settings import check_start
    from holdfast.runtime.launch.prepare import prepare_job
    from holdfast.runtime.launch.resources import provide_for
    from holdfast.runtime.launch.run_callbacks import callbacks_of

    try:
        job = prepare_job(read_config(file, (), os.environ))
        callbacks_of(job.config)
        check_start(job.config, os.environ)
        provision = provide_for(job)
    except HoldfastError as error:
        yield failed("job", str(error), f"{file} cannot run here", "see docs/jobs.md")
        return
    yield ok("job", f"{file}: {len(job.workers)} workers; {provision.summary}")
    for line in provision.lacking:
        yield Check("warn", "job", line, "all that the job asks for", "as the line says")
