"""`holdfast init`: a job file for the machine at hand.

Only the command line is here; what it does is imported when it runs.
"""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from holdfast.cli.arguments import SWITCH


def init(
    path: Annotated[Path, Parameter(help="Where to write it.")] = Path("job.toml"),
    /,
    *,
    model: Annotated[
        str, Parameter(help="A preset, like llama-tiny, or module:function of your own.")
    ] = "",
    hf: Annotated[
        Path | None, Parameter(help="Instead: a directory of Hugging Face with config.json.")
    ] = None,
    data: Annotated[
        Path | None, Parameter(help="Tokens, as .npy or .bin; without it, a synthetic task.")
    ] = None,
    steps: Annotated[int, Parameter(help="How long to train.")] = 100,
    all: Annotated[
        bool, Parameter(help="Add every other setting, with its meaning.", **SWITCH)
    ] = False,
    force: Annotated[
        bool, Parameter(help="Write it also where a file is already.", **SWITCH)
    ] = False,
) -> None:
    """Write a commented job file that fits this machine: its cores or GPUs, and its memory.

    What is written is checked like any job, so `holdfast run` takes it as it is.
    """
    from holdfast.cli.init_job import InitAsked, write_job

    write_job(path, InitAsked(model, hf, data, steps, all), force=force)
