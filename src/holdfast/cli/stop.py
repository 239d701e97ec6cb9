"""`holdfast stop`: end a job that runs, as a signal to its launcher would.

Only the command line is here; what it does is imported when it runs.
"""

from typing import Annotated

from cyclopts import Parameter


def stop(
    job: Annotated[str, Parameter(help="Its run directory, or its rendezvous (dir:/shared/job).")],
    /,
) -> None:
    """Stop a job at the next step boundary, with a checkpoint; the same command goes on later.

    Asks the job's coordinator, with the secret in the run directory (or HOLDFAST_SECRET).
    """
    from holdfast.cli.attach_run import stop_where_it_runs

    print(stop_where_it_runs(job))
