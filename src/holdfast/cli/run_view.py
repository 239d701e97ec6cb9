"""The page that a job serves itself, where `[view] port` asks for it.

It is `holdfast view` in a process of its own, of low priority: whatever happens to it, the job does
not notice. It is started when the journal is there, and ends with the job.
"""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.cli.view_run import listen_on
from holdfast.errors import HoldfastError
from holdfast.observe.events import Event, JobStarted
from holdfast.runtime.config.view_sections import ViewSection
from holdfast.runtime.record.recorder import OnEvent

END_S = 5.0
NICENESS = 10


class JobPage:
    """Told all events; the first one that names the run directory starts it."""

    def __init__(self, view: ViewSection) -> None:
        self._view = view
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self, event: Event) -> None:
        if self._process is None and isinstance(event, JobStarted):
            self._process = self._start(Path(event.run_dir))

    def _start(self, run_dir: Path) -> "subprocess.Popen[bytes]":
        view = self._view
        words = ["view", str(run_dir), "--host", view.host, "--port", str(view.port)]
        words += ["--control"] if view.control else []
        words += ["--otlp", view.otlp] if view.otlp else []
        with (run_dir / "logs" / "view.log").open("ab") as log:
            started = subprocess.Popen(
                [sys.executable, "-m", "holdfast.cli.main", *words, "--with-input"],
                stdin=subprocess.PIPE,  # whose end is the end of this process
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C is for the job, and its end is shown, too
            )
        os.setpriority(os.PRIO_PROCESS, started.pid, NICENESS)
        return started

    def close(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(END_S)


@contextmanager
def serve_beside(view: ViewSection) -> Iterator[OnEvent | None]:
    """None: the job does not ask for it."""
    if not view.port:
        yield None
        return
    if importlib.util.find_spec("uvicorn") is None:
        raise HoldfastError(f"view.port = {view.port} needs uvicorn: install holdfast[view]")
    listen_on(view.host, view.port, "view.port").close()  # told now, not in the log of the page
    page = JobPage(view)
    try:
        yield page
    finally:
        page.close()
