"""The callbacks and loggers that a job asks for, made before anything of it starts."""

import importlib.util
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.engine.import_path import call_factory, load_object
from holdfast.errors import HoldfastError, UserCodeError
from holdfast.observe.callbacks.callback import Callback, Handler
from holdfast.observe.loggers.logger import Logger, LogRun, LogWriter
from holdfast.runtime.config.job_file import SECTIONS, JobConfig
from holdfast.runtime.config.view_sections import LOGGERS


def callbacks_of(config: JobConfig) -> list[Callback | Handler]:
    """What [log] names; HoldfastError where one of them cannot be had."""
    folder = config.job.source_dir
    loggers = [_logger(name, config) for name in config.log.loggers]
    paths = config.log.callback_paths
    return [*loggers, *(checked_callback(path, folder, "log.callbacks") for path in paths)]


def checked_callback(given: Any, folder: str, what: str) -> Callback | Handler:
    """An object that can be called back; `given` may be its import path, or its class."""
    path, place = given, f"{what} = {given!r}"
    if isinstance(given, str):
        given = load_object(path, folder, what)
    if isinstance(given, type):
        given = call_factory(given, {}, place)
    if isinstance(given, Callback) or callable(given):
        found: Callback | Handler = given
        return found
    raise HoldfastError(
        f"{what} is a {type(given).__name__}: a function of one event is needed, or an object of "
        f"holdfast.Callback"
    )


def _logger(name: str, config: JobConfig) -> LogWriter:
    if name in LOGGERS and name != "csv" and importlib.util.find_spec(name) is None:
        raise HoldfastError(
            f"log.to = {name!r} needs the package {name}, which is not installed: "
            f"pip install 'holdfast[{name}]'"
        )
    path, folder = LOGGERS.get(name, name), config.job.source_dir
    if name not in LOGGERS:
        load_object(path, folder, "log.to")  # its mistakes are told now
    return LogWriter(
        name.replace("/", "-").replace(":", "-"),
        _opener(path, folder),
        project=config.log.project,
        every=config.log.every,
        settings=flat_settings(config),
    )


def _opener(path: str, folder: str) -> Callable[[LogRun], Logger]:
    """Imports the logger with its library when the run begins, on the thread that uses it."""

    def open_logger(run: LogRun) -> Logger:
        try:
            found: Logger = load_object(path, folder, "log.to")(run)
        except UserCodeError as error:
            raise error.__cause__ or error from None
        return found

    return open_logger


def flat_settings(config: JobConfig) -> dict[str, Any]:
    """`section.key` and its value, for all that is set."""
    return {
        f"{section}.{key}": value
        for section in SECTIONS
        for key, value in msgspec.to_builtins(getattr(config, section)).items()
        if value not in (None, "", [], {})
    }
