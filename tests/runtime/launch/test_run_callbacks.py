"""What [log] asks for is made before anything starts, and its mistakes are told then."""

import pytest

from holdfast.errors import HoldfastError
from holdfast.observe.callbacks.callback import Callback
from holdfast.observe.loggers.logger import LogWriter
from holdfast.runtime.config.settings import read_tables
from holdfast.runtime.launch.run_callbacks import callbacks_of, checked_callback, flat_settings

CODE = """
import holdfast as hf

class Alarm(hf.Callback):
    pass

class Needs(hf.Callback):
    def __init__(self, what):
        pass

def note(event):
    pass

NUMBER = 3

class Fails(hf.Callback):
    def __init__(self):
        raise OSError("no network")
"""


def config(tmp_path, flags=(), **log):
    (tmp_path / "own.py").write_text(CODE)
    tables = {"job": {"steps": 3}, "log": log}
    return read_tables(tables, tmp_path / "job.toml", flags, {})


def test_callbacks_and_loggers_by_name(tmp_path):
    asked = config(tmp_path, callbacks=["own.py:Alarm", "own.py:note"], to=["csv"], every=5)
    writer, alarm, note = callbacks_of(asked)
    assert isinstance(writer, LogWriter)
    assert isinstance(alarm, Callback)
    assert note.__name__ == "note"
    flags = ["--log.to", "csv, own.py:Log", "--log.callbacks=own.py:note"]
    assert config(tmp_path, flags).log.loggers == ("csv", "own.py:Log")
    assert flat_settings(asked)["log.every"] == 5
    assert "job.tls_cert" not in flat_settings(asked)


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ({"to": ["tensorbord"]}, "to = 'tensorbord': one of tensorboard, wandb, mlflow, csv"),
        ({"to": ["own.py:Nothing"]}, "own.py has no 'Nothing'"),
        ({"callbacks": ["own.py:NUMBER"]}, "is a int: a function of one event is needed"),
        ({"callbacks": ["own.py:Needs"]}, "missing 1 required positional argument: 'what'"),
        ({"callbacks": ["own.py:Fails"]}, "fails: OSError: no network"),
        ({"callbacks": ["nowhere:x"]}, "there is no module 'nowhere'"),
    ],
)
def test_mistakes_are_told_at_once(tmp_path, log, message):
    with pytest.raises(HoldfastError, match=message):
        callbacks_of(config(tmp_path, **log))


def test_a_package_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(HoldfastError, match=r"needs the package wandb.*holdfast\[wandb\]"):
        callbacks_of(config(tmp_path, to="wandb"))


def test_what_python_programs_give():
    alarm = Callback()
    assert checked_callback(alarm, "", "callbacks[0]") is alarm
    assert isinstance(checked_callback(Callback, "", "callbacks[0]"), Callback)
    with pytest.raises(HoldfastError, match=r"callbacks\[0\] is a NoneType"):
        checked_callback(None, "", "callbacks[0]")
