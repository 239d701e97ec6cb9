"""Runs an example script as one rank, inside a warm worker process."""

import contextlib
import os
import runpy
import sys
from pathlib import Path
from unittest import mock


def run_example(
    script: Path, rank: int, size: int, port: int, options: tuple[str, ...], said: Path
) -> None:
    """What the script prints goes to a file, which is there also if the process dies."""
    environment = {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    with (
        said.open("w") as out,
        contextlib.redirect_stdout(out),
        mock.patch.dict(os.environ, environment),
        mock.patch.object(sys, "argv", [str(script), *options]),
    ):
        runpy.run_path(str(script), run_name="__main__")
