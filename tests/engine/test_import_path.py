"""Code of the user by its import path: found, or refused in one line."""

import sys
from functools import partial

import pytest

from holdfast.engine.import_path import anchored, call_factory, is_loading, load_object, path_of
from holdfast.errors import HoldfastError, UserCodeError

CODE = """
from holdfast.engine.import_path import is_loading
seen = is_loading()
class Inner:
    def build(self=None, size=1):
        return size
def fails():
    raise ValueError("no such thing")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "own_code.py").write_text(CODE)
    (tmp_path / "broken_code.py").write_text("import numpy\n1 / 0\n")
    (tmp_path / "lacking_code.py").write_text("import no_such_library\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield str(tmp_path)
    for name in [name for name in sys.modules if name.endswith("_code")]:
        del sys.modules[name]


def test_modules_and_files_are_found(folder):
    for path in ("own_code:Inner.build", "own_code.py:Inner.build"):
        assert load_object(path, folder, "model.factory")(size=3) == 3
    assert load_object("own_code:seen", folder, "model.factory") == "own_code"
    assert is_loading() == ""
    once = load_object("own_code.py:Inner", folder, "model.factory")
    assert load_object("own_code.py:Inner", folder, "model.factory") is once


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("own_code", "is no import path like 'my_project.model:build'"),
        ("own_code:built", "own_code has no 'built'; it has seen, Inner, fails"),
        ("own_cod:build", "there is no module 'own_cod' in"),
        ("own_cod.py:build", "there is no file"),
    ],
)
def test_wrong_paths_are_refused(folder, path, message):
    with pytest.raises(HoldfastError) as found:
        load_object(path, folder, "model.factory")
    assert message.replace("it has seen", "it has is_loading, seen") in str(found.value)
    assert f"model.factory = {path!r}" in str(found.value)


def test_errors_of_user_code_keep_their_traceback(folder):
    with pytest.raises(UserCodeError, match="ZeroDivisionError") as found:
        load_object("broken_code:build", folder, "model.factory")
    assert isinstance(found.value.__cause__, ZeroDivisionError)
    with pytest.raises(UserCodeError, match="No module named 'no_such_library'"):
        load_object("lacking_code:build", folder, "model.factory")
    with pytest.raises(UserCodeError, match="here fails: ValueError: no such thing") as found:
        call_factory(load_object("own_code:fails", folder, "x"), {}, "here")
    assert found.value.__cause__.__traceback__.tb_next.tb_frame.f_code.co_name == "fails"
    with pytest.raises(HoldfastError, match="here is a int, not a function"):
        call_factory(3, {}, "here")


def test_what_python_gives_has_a_path():
    def local():
        pass

    assert path_of("a.b:c", "model") == "a.b:c"
    assert path_of(load_object, "model") == "holdfast.engine.import_path:load_object"
    for given, message in (
        (local, "model is .*local.* which workers cannot import"),
        (lambda: 0, "<lambda>"),
        (partial(local), "model is a partial; every worker builds its own"),
    ):
        with pytest.raises(HoldfastError, match=message):
            path_of(given, "model")


def test_a_script_is_imported_as_a_file(monkeypatch):
    def build():
        pass

    build.__module__, build.__qualname__ = "__main__", "build"
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "/somewhere/train.py", raising=False)
    assert path_of(build, "model") == "/somewhere/train.py:build"
    monkeypatch.delattr(sys.modules["__main__"], "__file__")
    with pytest.raises(HoldfastError, match="%%writefile"):
        path_of(build, "model")


def test_files_are_found_from_any_working_directory():
    assert anchored("opt.py:build", "/jobs") == "/jobs/opt.py:build"
    assert anchored("/else/opt.py:build", "/jobs") == "/else/opt.py:build"
    assert anchored("my_project.opt:build", "/jobs") == "my_project.opt:build"
    assert anchored("cosine", "/jobs") == "cosine"
