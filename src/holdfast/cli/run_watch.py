"""What `holdfast top` does."""

import time
from contextlib import suppress
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live

from holdfast.cli.plan_show import make_console
from holdfast.cli.run_files import read_run
from holdfast.errors import HoldfastError
from holdfast.observe.run.load import RunFollower
from holdfast.observe.top_view import render_top

LEAST_S = 0.05


def watch(run_dir: Path, *, every_s: float) -> None:
    if not every_s >= LEAST_S:
        raise HoldfastError(f"--every {every_s:g}: at least {LEAST_S:g} seconds")
    follower, console = read_run(run_dir), make_console()
    if console.is_terminal:
        with suppress(KeyboardInterrupt):
            _keep_up(follower, console, every_s)
    else:
        console.print(_look(follower))


def _look(follower: RunFollower) -> Group:
    return render_top(follower.model, follower.roles(), time.time())


def _keep_up(follower: RunFollower, console: Console, every_s: float) -> None:
    with Live(_look(follower), console=console, auto_refresh=False) as live:
        while follower.model.ended is None:
            time.sleep(every_s)
            follower.poll()
            live.update(_look(follower), refresh=True)
