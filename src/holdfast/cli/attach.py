"""`holdfast attach`: watch a job that runs, wherever its launcher is.

Only the command line is here; what it does is imported when it runs.
"""

from typing import Annotated

from cyclopts import Parameter

from holdfast.cli.arguments import SWITCH


def attach(
    job: Annotated[str, Parameter(help="Its run directory, or its rendezvous (dir:/shared/job).")],
    /,
    *,
    quiet: Annotated[bool, Parameter(help="Show nothing but errors.", **SWITCH)] = False,
    verbose: Annotated[
        bool,
        Parameter(name=["--verbose", "-v"], help="Show all that is decided.", **SWITCH),
    ] = False,
    json: Annotated[
        bool, Parameter(help="Print the report for other programs instead.", **SWITCH)
    ] = False,
) -> int:
    """Show a job as `holdfast run` does, until it ends.

    Exits with 0 if it has finished, with 143 if it was stopped, with 1 if it has failed.

    Ctrl-C ends this command alone: the job goes on.
    """
    from holdfast.cli.attach_run import attach_to
    from holdfast.cli.run_job import Shown

    return attach_to(job, Shown(quiet=quiet, verbose=verbose, as_json=json))
