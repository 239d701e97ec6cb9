"""`holdfast status`: how a running job is doing.

Only the command line is here; what it does is imported when it runs.
"""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from holdfast.cli.arguments import SWITCH


def status(
    run_dir: Annotated[Path, Parameter(help="The run directory of the job.")],
    /,
    *,
    json: Annotated[bool, Parameter(help="Print it for other programs.", **SWITCH)] = False,
) -> None:
    """Who is alive, at which step, under which plan, and what was decided lately and why.

    Asks the job's coordinator, with the secret in the run directory (or HOLDFAST_SECRET); of a run
    that is over, tells how it ended.
    """
    from holdfast.cli.run_control import show_status

    show_status(run_dir, as_json=json)
