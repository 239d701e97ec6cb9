"""`holdfast export`: the trained weights of a run, in a directory that other programs load.

Only the command line is here; what it does is imported when it runs.
"""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def export(
    run_dir: Annotated[Path, Parameter(help="The run directory of a job with [model] hf.")],
    /,
    *,
    hf: Annotated[Path, Parameter(help="The directory to write, which must not exist yet.")],
    step: Annotated[int, Parameter(help="Of which checkpoint; -1 = the newest state.")] = -1,
    json: Annotated[bool, Parameter(negative="", help="Print it for other programs.")] = False,
) -> int:
    """Write the weights of a run as a Hugging Face directory.

    holdfast export runs/job-1 --hf out

    What it writes is loaded by `from_pretrained`; tokenizer files of the model it began with are
    kept.
    """
    from holdfast.cli.export_weights import export_hf

    return export_hf(run_dir, hf, step, as_json=json)
