"""`holdfast run -v`: shows what the processes of a run log, while it runs."""

import threading
from collections.abc import Callable
from pathlib import Path

from holdfast.observe.events import Event, JobStarted
from holdfast.observe.log_lines import LogFollower, format_log_line
from holdfast.observe.run_directory import LOGS

POLL_S = 0.1


class LogWatcher:
    """Reads the logs on a thread of its own, from the event that names the run directory until the
    end of the `with` block. Call it with every event.
    """

    def __init__(self, show: Callable[[str], object], poll_s: float = POLL_S) -> None:
        self._show, self._poll_s = show, poll_s
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, JobStarted) and self._thread is None:
            logs = LogFollower(Path(event.run_dir) / LOGS)
            self._thread = threading.Thread(target=self._run, args=(logs,), name="logs")
            self._thread.start()

    def _run(self, logs: LogFollower) -> None:
        is_last = False
        while not is_last:
            is_last = self._ended.wait(self._poll_s)
            for line in logs.read():
                self._show(format_log_line(line))

    def __enter__(self) -> "LogWatcher":
        return self

    def __exit__(self, *args: object) -> None:
        """Shows what is still unread."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
