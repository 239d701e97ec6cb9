"""[view] and [log] of a job file: what is shown of a run, and where its numbers go."""

from typing import Annotated

from msgspec import Meta

from holdfast.errors import HoldfastError
from holdfast.runtime.config.section_types import Count, Natural, Section


class ViewSection(Section, frozen=True, kw_only=True):
    port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    """Serve the page and the metrics of the job here, as long as it runs; 0 = do not."""
    host: str = "127.0.0.1"
    """The address to serve them on; by default they are seen from this machine alone."""
    control: bool = False
    """Let the page inject faults and stop the job, with the job's secret."""
    otlp: str = ""
    """Where incidents are sent as OpenTelemetry traces, like http://127.0.0.1:4318/v1/traces."""
    trace_every: Natural = 1
    """Steps between two whose actions are timed, for `holdfast trace`; 0 = none are."""
    trace_limit_bytes: Annotated[int, Meta(ge=0, le=2**40)] = 16 * 2**20
    """How much of that is kept of every worker, on disk: the newest."""

    def __post_init__(self) -> None:
        if self.otlp and not self.otlp.startswith(("http://", "https://")):
            raise HoldfastError(
                f"otlp = {self.otlp!r}: expected an address like http://127.0.0.1:4318/v1/traces"
            )


class LogSection(Section, frozen=True, kw_only=True):
    to: str | tuple[str, ...] = ()
    """Where the numbers of every step go: tensorboard, wandb, mlflow, csv, or the import path of a
    logger of your own.
    """
    every: Count = 1
    """Steps between two that are logged."""
    project: str = ""
    """Of Weights & Biases, the experiment of MLflow; empty = the name of the job."""
    callbacks: str | tuple[str, ...] = ()
    """Import paths of functions or classes that are called while the job runs, like
    `my_project.alarms:Alarm`; in the launcher's process, beside the training.
    """

    def __post_init__(self) -> None:
        for name in self.loggers:
            if name not in LOGGERS and ":" not in name:
                raise HoldfastError(
                    f"to = {name!r}: one of {', '.join(LOGGERS)}, or an import path like "
                    f"'my_project.log:MyLog'"
                )

    @property
    def loggers(self) -> tuple[str, ...]:
        return as_names(self.to)

    @property
    def callback_paths(self) -> tuple[str, ...]:
        return as_names(self.callbacks)


LOGGERS = {
    "tensorboard": "holdfast.observe.loggers.tensorboard_log:TensorBoardLog",
    "wandb": "holdfast.observe.loggers.wandb_log:WandbLog",
    "mlflow": "holdfast.observe.loggers.mlflow_log:MlflowLog",
    "csv": "holdfast.observe.loggers.csv_log:CsvLog",
}


def as_names(given: str | tuple[str, ...]) -> tuple[str, ...]:
    """`"a,b"` on a command line is `["a", "b"]`."""
    names = given.split(",") if isinstance(given, str) else given
    return tuple(name.strip() for name in names if name.strip())
