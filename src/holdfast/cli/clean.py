"""`holdfast clean`: remove memory that ended runs have left.

Only the command line is here; what it does is imported when it runs.
"""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from holdfast.cli.arguments import SWITCH


def clean(
    run_dir: Annotated[
        Path | None, Parameter(help="A run directory; without one, those of all runs.")
    ] = None,
    /,
    *,
    yes: Annotated[
        bool, Parameter(name=["--yes", "-y"], help="Remove it; otherwise it is listed.", **SWITCH)
    ] = False,
    dry_run: Annotated[
        bool, Parameter(help="List it and remove nothing: what happens anyway.", **SWITCH)
    ] = False,
    json: Annotated[bool, Parameter(help="Print it for other programs.", **SWITCH)] = False,
) -> None:
    """Find shared memory of runs that were killed, and remove it with --yes.

    A run that is started again in its directory goes on from that memory. Memory of jobs that run
    is not touched.
    """
    from holdfast.cli.clean_memory import clean_memory

    clean_memory(run_dir, remove=yes and not dry_run, as_json=json)
