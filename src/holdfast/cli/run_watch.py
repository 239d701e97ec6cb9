"""What `holdfast top` does."""

import time
from contextlib import suppress
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live

from holdfast.cli.plan_show import make_console
from holdfast.cli.run_files import read_run
from holdfast.errors import HoldfastError
from holdfast.observe.top_view import render_top
from holdfast.observe.view_data import RunFeed

LEAST_S = 0.05


def watch(run_dir: Path, *, every_s: float) -> None:
    if not every_s >= LEAST_S:
        raise HoldfastError(f"--every {every_s:g}: at least {LEAST_S:g} seconds")
    feed, console = RunFeed(read_run(run_dir)), make_console()
    if console.is_terminal:
        with suppress(KeyboardInterrupt):
            _keep_up(feed, console, every_s)
    else:
        console.print(_look(feed))


def _look(feed: RunFeed) -> Group:
    return render_top(feed.follower.model, feed.head())


def _keep_up(feed: RunFeed, console: Console, every_s: float) -> None:
    with Live(_look(feed), console=console, auto_refresh=False) as live:
        while feed.follower.model.ended is None:
            time.sleep(every_s)
            live.update(_look(feed), refresh=True)
