"""`holdfast data`: prepare the data of a job.

Only the command line is here; what it does is imported when it runs.
"""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

app = App(name="data", help="Prepare the data of a job, and say what there is.")

_SWITCH = {"negative": "", "show_default": False}


@app.command
def prepare(
    file: Annotated[Path, Parameter(help="A job file (TOML).")],
    /,
    *settings: Annotated[
        str,
        Parameter(
            help="Any key of the job file, as for `holdfast run`: --data.path corpus.jsonl.",
            allow_leading_hyphen=True,
        ),
    ],
    json: Annotated[bool, Parameter(help="Print it for other programs.", **_SWITCH)] = False,
) -> None:
    """Tokenise what a job reads, so that it starts at once; `holdfast run` does the same.

    What is broken off (Ctrl-C, a crash) goes on where it was. What has been prepared is kept in
    the cache (data.cache), by its content: other jobs with the same files and tokenizer find it.
    """
    from holdfast.cli.data_prepare import prepare_file

    prepare_file(file, settings, as_json=json)
