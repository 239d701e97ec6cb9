"""The `holdfast` command: commands put together, and every way to end turned into an exit code.

    0    done
    1    an error the user can act on (a HoldfastError may carry another code), told in one line
    2    wrong usage, told in one line
    70   a bug in Holdfast: the traceback, then one line
    130  interrupted, or a job stopped by Ctrl-C (also where it stopped cleanly: it is not done)
    141  the reader of our output went away
    143  a job stopped by SIGTERM; other signals accordingly (129 SIGHUP, 138 SIGUSR1, 140 SIGUSR2)

HOLDFAST_DEBUG=1 shows the traceback of every error.
"""

import difflib
import gc
import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from math import isfinite
from typing import Any

from cyclopts import App, CycloptsError, UnknownCommandError, UnknownOptionError

from holdfast import __version__
from holdfast.cli.agent import agent
from holdfast.cli.attach import attach
from holdfast.cli.clean import clean
from holdfast.cli.data import app as data_app
from holdfast.cli.demo import demo
from holdfast.cli.doctor import doctor
from holdfast.cli.export import export
from holdfast.cli.fuzz import fuzz
from holdfast.cli.init import init
from holdfast.cli.inject import inject
from holdfast.cli.inspect import inspect
from holdfast.cli.plan import app as plan_app
from holdfast.cli.report import report as report_command
from holdfast.cli.run import run as run_command
from holdfast.cli.simulate import simulate
from holdfast.cli.status import status
from holdfast.cli.stop import stop
from holdfast.cli.submit import submit
from holdfast.cli.top import top
from holdfast.cli.trace import trace
from holdfast.cli.view import view
from holdfast.errors import HoldfastError, UserCodeError, invariant, own_traceback

COMMON_FLAGS = ("--help", "--version")

EXIT_USAGE = 2
EXIT_BUG = 70
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


def build_app() -> App:
    app = App(
        name="holdfast",
        help="Keep LLM training running while devices, processes and nodes fail under it.",
        version=f"holdfast {__version__}",
        suppress_keyboard_interrupt=False,
    )
    app.register_install_completion_command()
    app.command(demo)
    app.command(init)
    app.command(doctor)
    app.command(plan_app)
    app.command(data_app)
    app.command(simulate)
    app.command(fuzz)
    app.command(run_command, name="run")
    app.command(agent)
    app.command(attach)
    app.command(stop)
    app.command(submit)
    app.command(status)
    app.command(top)
    app.command(view)
    app.command(trace)
    app.command(report_command, name="report")
    app.command(inject)
    app.command(inspect)
    app.command(export)
    app.command(clean)
    return app


def normalise_flags(argv: Sequence[str]) -> list[str]:
    """Spell `--micro_batches=4` as `--micro-batches=4`: users know both spellings from torchrun.

    Everything after `--` or after a script's name is not ours and stays as it is.
    """
    tokens: list[str] = []
    ours = True
    for token in argv:
        ours = ours and token != "--"
        if ours and token.startswith("--"):
            flag, equals, value = token.partition("=")
            token = flag.replace("_", "-") + equals + value
        elif token.endswith(".py"):
            ours = False
        tokens.append(token)
    return tokens


def flags_of(arguments: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """(name, value) of what a command is called with; options may stand in groups."""
    for name, value in arguments.items():
        if is_dataclass(value):
            yield from flags_of(vars(value))
        else:
            yield name, value


def run(argv: Sequence[str], app: App) -> int:
    """Run one command; its errors pass through as exceptions."""
    tokens = normalise_flags(argv)
    _, bound, _ = app.parse_args(tokens, exit_on_error=False, print_error=False)
    for name, value in flags_of(bound.arguments):
        if isinstance(value, float) and not isfinite(value):
            flag = "--" + name.replace("_", "-")
            raise HoldfastError(f"{flag} {value}: a finite number is needed", exit_code=EXIT_USAGE)
    result = app(
        tokens,
        exit_on_error=False,
        print_error=False,
        result_action="return_value",
    )
    invariant(
        result is None or isinstance(result, int),
        f"a command returns its exit code or None, not {type(result).__name__}",
    )
    # A reader that went away shows only when the buffer is written: here, not at shutdown.
    # (print, because it also copes with a closed stdout.)
    print(end="", flush=True)
    return int(result or 0)


def explain_usage(error: CycloptsError) -> str:
    """The parser's own words, and a suggestion for the flags every command has.

    The parser calls a mistyped flag before any command an unknown command, and never suggests
    `--help` or `--version`.
    """
    line = str(error)
    match error:
        case UnknownCommandError(unused_tokens=[str(flag), *_]) if flag.startswith("-"):
            line = f"Unknown option: {flag}."
        case UnknownOptionError():
            flag = error.token.keyword or error.token.value
        case _:
            return line
    suggested = re.search(r" Did you mean (--[\w-]+)\?", line)
    known = [*COMMON_FLAGS, *(suggested.groups() if suggested else ())]
    nearest = difflib.get_close_matches(flag, known, n=1)
    if nearest:
        line = f"{line.partition(' Did you mean')[0]} Did you mean {nearest[0]}?"
    return line


def explain(error: BaseException) -> tuple[int, str]:
    """The exit code and the one line for an error."""
    match error:
        case CycloptsError():
            return EXIT_USAGE, f"error: {explain_usage(error)}"
        case HoldfastError():
            return error.exit_code, f"error: {error}"
        case OSError(filename=str() | bytes() | os.PathLike() as name, strerror=str(why)):
            return 1, f"error: {os.fsdecode(name)}: {why}"
        case OSError():
            return 1, f"error: {error.strerror or error}"
        case ValueError(args=("embedded null byte",)):
            return 1, "error: a path has a null byte in it"
        case KeyboardInterrupt():
            return EXIT_INTERRUPTED, "interrupted"
        case _:
            return EXIT_BUG, f"internal error: {error!r} (this is a bug in Holdfast)"


def report(error: BaseException) -> int:
    """Tell an error on stderr, in one line, and give its exit code."""
    code, line = explain(error)
    if isinstance(error, UserCodeError) and error.__cause__ is not None:
        print("\n".join(own_traceback(error.__cause__)), file=sys.stderr)
    if code == EXIT_BUG or os.environ.get("HOLDFAST_DEBUG") == "1":
        traceback.print_exception(error)
    print("holdfast: " + " ".join(line.split()), file=sys.stderr)
    return code


def silence_stdout() -> None:
    """Send what is still buffered nowhere; the interpreter would complain about it at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def open_closed_streams() -> None:
    """Where a standard stream is closed, the next file that is opened would get its number, and
    what is printed would land there. Streams are opened in their order, so that each gets its own.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def main(argv: Sequence[str] | None = None, app: App | None = None) -> int:
    """The exit code. Without `argv` the command is all that this process does."""
    open_closed_streams()
    try:
        return run(sys.argv[1:] if argv is None else argv, app or build_app())
    except BrokenPipeError:
        silence_stdout()
        return EXIT_BROKEN_PIPE
    except (Exception, KeyboardInterrupt) as error:
        return report(error)
    finally:
        if argv is None:
            # The interpreter would look through all that torch has loaded before it ends: half a
            # second of CPU time, of the time in which a stopped job should be gone.
            gc.freeze()


if __name__ == "__main__":
    sys.exit(main())
