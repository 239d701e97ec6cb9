"""`holdfast run`: train what a job file says.

Only the command line is here; what it does is imported when it runs.
"""

from typing import Annotated

from cyclopts import Parameter

from holdfast.cli.arguments import SWITCH, JobFile, JobSettings


def run(
    file: JobFile,
    /,
    *settings: JobSettings,
    dry_run: Annotated[
        bool, Parameter(help="Check everything, say what would run, start nothing.", **SWITCH)
    ] = False,
    detach: Annotated[
        bool, Parameter(help="Run in the background; see `holdfast attach`.", **SWITCH)
    ] = False,
    quiet: Annotated[bool, Parameter(help="Show nothing but errors.", **SWITCH)] = False,
    verbose: Annotated[
        bool,
        Parameter(
            name=["--verbose", "-v"],
            help="Show all that is decided, and what all processes log to the run directory.",
            **SWITCH,
        ),
    ] = False,
    json: Annotated[
        bool, Parameter(help="Print the report for other programs instead.", **SWITCH)
    ] = False,
) -> int:
    """Train: start the workers of a job file on this machine and follow them to the end.

    Settings on the command line go before the environment (HOLDFAST_SECTION__KEY), and that goes
    before the file. The same command again goes on in the directory of the run before, if the job
    names one (job.run_dir) or says `--resume auto`. Ctrl-C, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2
    stop with a checkpoint, with exit code 128 and the signal's number; Ctrl-C again stops at once.
    SIGQUIT prints where every process is.
    """
    from holdfast.cli.run_job import Shown, run_file

    shown = Shown(quiet=quiet, verbose=verbose, as_json=json)
    return run_file(file, settings, shown, dry_run=dry_run, detach=detach)
