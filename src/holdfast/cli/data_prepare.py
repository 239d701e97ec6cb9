"""What `holdfast data prepare` does."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast.cli.plan_show import print_json
from holdfast.data.progress_lines import ProgressLines
from holdfast.errors import HoldfastError
from holdfast.runtime.config.settings import read_config
from holdfast.runtime.launch.data_summary import data_lines, summarise_data
from holdfast.runtime.launch.prepare import prepare_job


def prepare_file(file: Path, settings: Sequence[str], *, as_json: bool) -> None:
    config = read_config(file, settings, os.environ)
    if not (config.data.has_files or config.data.factory or config.eval.has_files):
        raise HoldfastError(
            f"{file}: data.kind = 'synthetic' needs no preparation; name files with --data.path"
        )
    job = prepare_job(config, on_progress=None if as_json else ProgressLines(show_progress))
    found = summarise_data(job)
    if as_json:
        print_json({"sources": found})
        return
    for line in data_lines(job, found):
        print(line)


def show_progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
