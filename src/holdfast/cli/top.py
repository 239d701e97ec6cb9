"""`holdfast top`: a job in the terminal, kept up to date."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def top(
    run_dir: Annotated[Path, Parameter(help="The run directory of the job.")],
    /,
    *,
    every: Annotated[float, Parameter(help="Seconds between two looks.")] = 0.5,
) -> None:
    """Workers, progress, failures and where the time goes, until the job ends or Ctrl-C.

    Into a pipe, the present state is printed once.
    """
    from holdfast.cli.run_watch import watch

    watch(run_dir, every_s=every)
