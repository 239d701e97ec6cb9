"""`holdfast report`: what a run came to."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def report(
    run_dir: Annotated[Path, Parameter(help="The run directory of the job.")],
    /,
    *,
    json: Annotated[
        bool,
        Parameter(help="Print it for other programs.", negative="", show_default=False),
    ] = False,
) -> None:
    """Failures by kind, recoveries and their stalls, steps done again, and where the time went.

    Made from the journal, so it also works for a job that runs, or that was killed.
    """
    from holdfast.cli.plan_show import make_console, print_json
    from holdfast.cli.run_files import read_report
    from holdfast.observe.report_text import render_report

    found = read_report(run_dir)
    if json:
        print_json(found)
    else:
        make_console().print(render_report(found))
