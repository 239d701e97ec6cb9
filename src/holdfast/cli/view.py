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
    control: Annotated[
        bool,
        Parameter(
            help="Let the page inject faults and stop the job, given the job's secret.",
            negative="",
            show_default=False,
        ),
    ] = False,
    otlp: Annotated[
        str, Parameter(help="Send incidents there, as OpenTelemetry traces, while it serves.")
    ] = "",
    with_input: Annotated[
        bool, Parameter(help="End when the standard input ends.", negative="", show_default=False)
    ] = False,
) -> None:
    """Serve a page that follows a job, with /metrics for Prometheus, /healthz and /readyz.

    It is seen from this machine alone unless --host says otherwise, and only reads unless
    --control says otherwise.
    """
    from holdfast.cli.view_run import Served, serve_run, write_page

    if out is not None:
        write_page(run_dir, out)
    else:
        serve_run(run_dir, Served(host, port, control=control, otlp=otlp, with_input=with_input))
