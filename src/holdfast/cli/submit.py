"""`holdfast submit`: a scheduler starts the job.

Only the command line is here; what it does is imported when it runs.
"""

from typing import Annotated, Literal

from cyclopts import Parameter

from holdfast.cli.arguments import SWITCH, JobFile, JobSettings


def submit(
    file: JobFile,
    /,
    *settings: JobSettings,
    to: Annotated[Literal["slurm", "ray", "kubernetes"], Parameter(help="Which scheduler.")],
    option: Annotated[
        tuple[str, ...],
        Parameter(
            name=["--with"],
            help="An option of the scheduler, like partition=gpu or time=4:00:00; may be repeated.",
            negative="",
        ),
    ] = (),
    spare_hosts: Annotated[
        int, Parameter(help="Hosts beyond those of the plan, to replace hosts that are lost.")
    ] = 0,
    print: Annotated[
        bool, Parameter(help="Show what would be submitted, and submit nothing.", **SWITCH)
    ] = False,
    json: Annotated[bool, Parameter(help="Say it for other programs.", **SWITCH)] = False,
) -> None:
    """Hand a job to a scheduler, which starts an agent on every host and the launcher beside them.

    The job is checked first, as by `holdfast run --dry-run`. It meets in net.rendezvous (--rdzv), a
    directory that all hosts share; without one, below runs/ of this directory, under the
    scheduler's number of the job.
    """
    from holdfast.cli.submit_job import SubmitAsked, submit_file

    asked = SubmitAsked(
        scheduler=to, options=option, num_spare_hosts=spare_hosts, only_shows=print, as_json=json
    )
    submit_file(file, settings, asked)
