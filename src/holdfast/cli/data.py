"""`holdfast data`: prepare the data of a job.

Only the command line is here; what it does is imported when it runs.
"""

from typing import Annotated

from cyclopts import App, Parameter

from holdfast.cli.arguments import SWITCH, JobFile, JobSettings

app = App(name="data", help="Prepare the data of a job, and say what there is.")


@app.command
def prepare(
    file: JobFile,
    /,
    *settings: JobSettings,
    json: Annotated[bool, Parameter(help="Print it for other programs.", **SWITCH)] = False,
) -> None:
    """Tokenise what a job reads, so that it starts at once; `holdfast run` does the same.

    What is broken off (Ctrl-C, a crash) goes on where it was. What has been prepared is kept in
    the cache (data.cache), by its content: other jobs with the same files and tokenizer find it.
    """
    from holdfast.cli.data_prepare import prepare_file

    prepare_file(file, settings, as_json=json)
