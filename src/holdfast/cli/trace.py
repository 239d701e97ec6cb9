"""`holdfast trace`: measured steps of a run, for Perfetto."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def trace(
    run_dir: Annotated[Path, Parameter(help="The run directory of the job.")],
    /,
    *,
    steps: Annotated[
        str, Parameter(help="Which, like 100:110 (110 is not among them); empty = the last ten.")
    ] = "",
    out: Annotated[Path, Parameter(help="The file to write.")] = Path("trace.json"),
    otlp: Annotated[
        str,
        Parameter(help="Send the incidents there, as OpenTelemetry traces, and write no file."),
    ] = "",
) -> None:
    """What every worker did in these steps, as it was measured: open it at ui.perfetto.dev.

    Works while the job runs, too. What is kept of a long run is said by [view] in its job file.
    """
    from holdfast.cli.trace_run import send_incidents, write_trace

    if otlp:
        send_incidents(run_dir, otlp)
    else:
        write_trace(run_dir, steps, out)
