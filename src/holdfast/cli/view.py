"""`holdfast view`: a run as a page, live or as a file."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def view(
    run_dir: Annotated[Path, Parameter(help="The run directory of the job.")],
    /,
    *,
    out: Annotated[
        Path | None, Parameter(help="Write one HTML file that needs no server, and end.")
    ] = None,
    host: Annotated[str, Parameter(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Parameter(help="The port; 0 = any that is free.")] = 8642,
) -> None:
    """Serve a page that follows a job, with /metrics for Prometheus, /healthz and /readyz.

    Read-only. It is seen from this machine alone unless --host says otherwise.
    """
    from holdfast.cli.view_run import serve_run, write_page

    if out is not None:
        write_page(run_dir, out)
    else:
        serve_run(run_dir, host=host, port=port)
