"""`holdfast doctor`: what is wrong with a machine.

Only the command line is here; what it does is imported when it runs.
"""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from holdfast.cli.arguments import SWITCH


def doctor(
    file: Annotated[
        Path | None, Parameter(help="A job file: also ask whether this machine is enough for it.")
    ] = None,
    /,
    *,
    json: Annotated[bool, Parameter(help="Print it for other programs.", **SWITCH)] = False,
) -> int:
    """Look at this machine: is there anything that jobs need and would not find?

    A line for each thing: ok, warn (jobs run, and something is worse than it could be) or fail (a
    job would not run). What is not ok has its remedy. The exit code is 1 if something fails.
    """
    from holdfast.cli.doctor_show import examine

    return examine(file, as_json=json)
