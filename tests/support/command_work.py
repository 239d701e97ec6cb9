"""Runs a command of ours inside a warm worker process, which ends with it."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def run_command(
    words: Sequence[str], folder: Path, environment: Mapping[str, str], said: Path
) -> None:
    """The exit code is that of the process; what goes to standard error is in a file. Whatever code
    of the folder was imported is gone with the process.
    """
    from holdfast.cli.main import main

    with said.open("wb") as errors, open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(errors.fileno(), 2)
    os.chdir(folder)
    os.environ.update(environment)
    code = main(words)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
