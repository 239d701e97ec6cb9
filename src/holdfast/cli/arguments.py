"""What several commands take: a job file, settings that go before it, and switches."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

SWITCH: dict[str, Any] = {"negative": "", "show_default": False}
"""Of an option without a value."""

JobFile = Annotated[Path, Parameter(help="A job file (TOML).")]
JobSettings = Annotated[
    str,
    Parameter(
        help="Any key of the job file: --section.key value, like --parallel.tensor 2; without its "
        "section where only one has it, like --steps 10.",
        allow_leading_hyphen=True,
    ),
]
