"""What `holdfast attach` and `holdfast stop` do."""

import time
from pathlib import Path

from holdfast.cli.plan_show import make_console
from holdfast.cli.run_control import stop_job
from holdfast.cli.run_files import read_report, read_run
from holdfast.cli.run_job import Shown, show_end, show_lines, watch_run
from holdfast.errors import HoldfastError
from holdfast.observe.events import Event, JobEnded, JobStarted
from holdfast.observe.follow import RunReader
from holdfast.observe.progress import after_steps
from holdfast.observe.report_text import report_lines
from holdfast.observe.run_directory import given_name
from holdfast.plan.text import parse_plan
from holdfast.runtime.launch.run_record import read_newest_run
from holdfast.runtime.launch.signals import exit_code
from holdfast.runtime.rendezvous.rendezvous import is_rendezvous, open_rendezvous
from holdfast.runtime.wire.client import NotRunning, ask
from holdfast.runtime.wire.messages import StatusRequest

LOOK_S = 0.25
ASK_S = 15.0
"""After so long without an event, it is asked whether there is a coordinator."""
SILENT_S = 60.0
TAKEOVER_S = 15.0
"""How long to wait for a coordinator, if another one is being started."""
EXIT_DETACHED = 130
_EXITS = {"finished": 0, "stopped": exit_code(15)}


def find_run_dir(job: str) -> Path:
    """Of a job that is named by its directory or by its rendezvous."""
    if not is_rendezvous(job):
        return Path(job)
    try:
        return Path(read_newest_run(open_rendezvous(job)).run_dir)
    except OSError as error:
        raise HoldfastError(f"{job} cannot be reached: {error}") from None


def stop_where_it_runs(job: str) -> str:
    """What was done. A coordinator that was lost is replaced within seconds: it is waited for."""
    deadline = time.monotonic() + (TAKEOVER_S if is_rendezvous(job) else 0.0)
    run_dir = find_run_dir(job)
    while True:
        try:
            return stop_job(run_dir)
        except NotRunning:
            if time.monotonic() >= deadline or read_run(run_dir).model.ended is not None:
                raise
        time.sleep(LOOK_S)


def attach_to(job: str, shown: Shown) -> int:
    run_dir = find_run_dir(job)
    events = _RunEvents(run_dir)
    if events.ended is None:
        if not (shown.quiet or shown.as_json):
            done = after_steps(read_run(run_dir).model.next_step)
            show_lines([f"attached to {run_dir}, {done}; Ctrl-C leaves it, and the job goes on"])
        try:
            _follow(events, run_dir, shown)
        except KeyboardInterrupt:
            show_lines([f"detached: the job goes on; holdfast stop {job} stops it"])
            return EXIT_DETACHED
    report = read_report(run_dir)
    show_end(report, shown, report_lines(report))
    assert events.ended is not None
    return _EXITS.get(events.ended.outcome, 1)


class _RunEvents:
    """The events of the newest run in a directory."""

    def __init__(self, run_dir: Path) -> None:
        read_run(run_dir)  # a directory in which nothing has begun is refused
        self._reader = RunReader(run_dir)
        self.ended: JobEnded | None = None
        self.started: JobStarted | None = None
        while self.read():
            pass

    def read(self) -> list[Event]:
        found = [event for _, event in self._reader.read()]
        for event in found:
            if isinstance(event, JobStarted):
                self.started, self.ended = event, None
            elif isinstance(event, JobEnded):
                self.ended = event
        return found


def _follow(events: _RunEvents, run_dir: Path, shown: Shown) -> None:
    plan = parse_plan((run_dir / given_name(0)).read_text(encoding="utf-8"))
    heard = asked = time.monotonic()
    with watch_run(shown, make_console(), plan) as on_event:
        if events.started is not None:
            on_event(events.started)
        while events.ended is None:
            time.sleep(LOOK_S)
            found, now = events.read(), time.monotonic()
            for event in found:
                on_event(event)
            if found or (now - asked >= ASK_S and _answers(run_dir)):
                heard = asked = now
            elif now - asked >= ASK_S:
                asked = now
            if now - heard >= SILENT_S:
                raise HoldfastError(
                    f"{run_dir}: no event and no answer of a coordinator for {SILENT_S:g} s; the "
                    f"same `holdfast run` goes on from what is left"
                )


def _answers(run_dir: Path) -> bool:
    try:
        ask(run_dir, "status", StatusRequest())
    except HoldfastError:
        return False
    return True
