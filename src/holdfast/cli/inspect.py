"""`holdfast inspect`: the versions of a job's state, in memory and on disk, and their health.

Only the command line is here; what it does is imported when it runs.
"""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def inspect(
    run_dir: Annotated[
        Path | None, Parameter(help="A run directory, or its checkpoints folder.")
    ] = None,
    /,
    *,
    shm: Annotated[
        bool, Parameter(negative="", help="Look at this machine's shared memory.")
    ] = False,
    verify: Annotated[
        bool, Parameter(negative="", help="Check every byte against its checksum.")
    ] = False,
    json: Annotated[bool, Parameter(negative="", help="Print it for other programs.")] = False,
) -> int:
    """List versions, slices, holders and health of saved state.

    holdfast inspect runs/job-1 --verify

    Exits with 1 if something is damaged.
    """
    from holdfast.cli.inspect_show import show

    return show(run_dir, shm=shm, verify=verify, as_json=json)
