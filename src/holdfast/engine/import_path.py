"""Code of the user by its import path: `my_project.model:build`, or `model.py:build` for a file.

Every worker imports and calls it itself, so it has to be found by name: functions and classes at
the top of a module, no lambdas and nothing that was made inside a function.
"""

import importlib
import importlib.util
import re
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError, UserCodeError

SCRIPT = "__holdfast_script__"
"""The name under which files are imported; `if __name__ == "__main__":` is false in them."""

_loading: list[str] = []


def is_loading() -> str:
    """The file or module that is being imported now; empty: none."""
    return _loading[-1] if _loading else ""


def load_object(path: str, folder: str, what: str) -> Any:
    """The object of an import path. `what`: the setting that names it, for errors."""
    match = re.fullmatch(r"([^:]+):([A-Za-z_][\w.]*)", path)
    if match is None:
        raise HoldfastError(
            f"{what} = {path!r} is no import path like 'my_project.model:build' or 'model.py:build'"
        )
    module = _import(match[1], folder, f"{what} = {path!r}")
    found: Any = module
    for name in match[2].split("."):
        if not hasattr(found, name):
            public = [known for known in vars(module) if not known.startswith("_")]
            raise HoldfastError(
                f"{what} = {path!r}: {match[1]} has no {name!r}; it has {', '.join(public[:12])}"
            )
        found = getattr(found, name)
    return found


def search_in(folder: str) -> None:
    """Modules beside the job file are found, too."""
    if folder and folder not in sys.path:
        sys.path.insert(0, folder)


def anchored(path: str, folder: str) -> str:
    """The same import path, whatever the working directory: `opt.py:build` becomes absolute."""
    file, colon, name = path.rpartition(":")
    return f"{Path(folder) / file}:{name}" if colon and file.endswith(".py") else path


def _import(name: str, folder: str, place: str) -> types.ModuleType:
    search_in(folder)
    _loading.append(name)
    try:
        if name.endswith(".py"):
            return _import_file(Path(folder) / name, place)
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise HoldfastError(
                f"{place}: there is no module {error.name!r} in {folder or '.'} or among the "
                f"installed packages"
            ) from None
        raise UserCodeError(f"{place}: importing it fails: {error}") from error
    except HoldfastError:
        raise
    except Exception as error:
        raise UserCodeError(
            f"{place}: importing it fails: {type(error).__name__}: {error}"
        ) from error
    finally:
        _loading.pop()


def _import_file(path: Path, place: str) -> types.ModuleType:
    name = f"{SCRIPT}{path.stem}"
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(path):
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise HoldfastError(f"{place}: there is no file {path}")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def call_factory(factory: Callable[..., Any], arguments: Mapping[str, Any], place: str) -> Any:
    if not callable(factory):
        raise HoldfastError(f"{place} is a {type(factory).__name__}, not a function or class")
    try:
        return factory(**arguments)
    except HoldfastError:
        raise
    except Exception as error:
        raise UserCodeError(f"{place} fails: {type(error).__name__}: {error}") from error


def path_of(given: Any, what: str) -> str:
    """The import path of what a Python program gives: a path, or a function or class."""
    if isinstance(given, str):
        return given
    name, module = getattr(given, "__qualname__", ""), getattr(given, "__module__", "")
    if not name or not module:
        raise HoldfastError(
            f"{what} is a {type(given).__name__}; every worker builds its own, so give the "
            f"function or class that makes it, or its import path"
        )
    if "<" in name:
        raise HoldfastError(
            f"{what} is {name} of {module}, which workers cannot import: define it with a name "
            f"of its own at the top of a module"
        )
    if module != "__main__":
        return f"{module}:{name}"
    file = getattr(sys.modules["__main__"], "__file__", None)
    if not file:
        raise HoldfastError(
            f"{what} is {name} of this interactive session, which workers cannot import: write "
            f"it to a file (in a notebook: %%writefile model.py) and import it from there"
        )
    return f"{Path(file).resolve()}:{name}"
