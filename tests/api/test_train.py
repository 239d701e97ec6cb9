"""Training from Python: the same job as that of a job file, and every mistake in one line."""

import re
from contextlib import nullcontext

import pytest
import torch

from holdfast import Callback, HoldfastError, train
from holdfast.api.train import make_config
from holdfast.engine import import_path
from holdfast.observe.events import StepDone
from holdfast.runtime.config.model_source import (
    foreign_model,
    model_units,
    model_vocab,
    preload_modules,
)
from holdfast.runtime.record.final_state import read_final
from tidy.source_tree import ROOT

JOB = {"job": {"steps": 3, "dtype": "float64", "threads": 1, "keep_final": True}}
PATH = f"{ROOT}/examples/own_model.py:build"


class Failing(Callback):
    def on_step(self, event):
        if event.step == 1:
            raise KeyError("mine")


def tables(**sections):
    return {**JOB, "data": {"micro_batches": 4}, **sections}


def test_sections_are_those_of_a_job_file():
    config = make_config(tables(), model=PATH, optimizer={"learning_rate": 0.5})
    assert config.model.factory == PATH
    assert config.model.title == PATH
    assert config.optimizer.learning_rate == 0.5
    assert model_vocab(config) == 64
    assert [unit.name for unit in model_units(config)] == [f"unit.{n}" for n in range(6)]
    assert foreign_model(config) is foreign_model(config), "traced once in a process"
    assert preload_modules(config) == ()


def test_paths_hold_anywhere(tmp_path, monkeypatch):
    """The run directory keeps the job, and is read from another folder."""
    monkeypatch.chdir(tmp_path)
    config = make_config(tables(model={"hf": "some-model"}))
    assert config.model.hf == str(tmp_path / "some-model")
    assert config.job.source_dir == str(tmp_path)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"factory": "a:b", "hf": "x"}, "factory = 'a:b' and hf = '.*x' contradict each other"),
        ({"hf": "x", "dim": 8}, "hf = '.*x' and dim = 8 contradict each other"),
        ({"arguments": {"n": 1}}, "are for a factory, and there is none"),
        ({"factory": "no_such_place:build"}, "there is no module 'no_such_place'"),
        ({"factory": "os.path:join"}, "os.path:join' fails: TypeError"),
        ({"factory": "builtins:dict"}, "returns a dict; it has to return what"),
        ({"hf": "nowhere"}, "nowhere' has no config.json"),
        ({"factory": PATH, "arguments": {"layer": 1}}, "unexpected keyword argument 'layer'"),
    ],
)
def test_mistakes_are_told_before_anything_starts(model, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HoldfastError, match=message):
        train(tables(model=model))
    assert not list(tmp_path.iterdir())


def test_a_unit_without_styles_runs_with_tensor_1_only(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = "tensor = 2, but unit 'unit.0' declares no tensor styles: it runs with tensor = 1"
    with pytest.raises(HoldfastError, match=re.escape(message)):
        train(tables(parallel={"tensor": 2}), model=PATH)


def test_a_callback_that_is_none_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HoldfastError, match=r"callbacks\[0\] is a int: a function of one event"):
        train(tables(), callbacks=[3])
    assert not list(tmp_path.iterdir())


def test_a_script_without_a_guard_is_told(monkeypatch):
    monkeypatch.setattr(import_path, "_loading", ["train.py"])
    with pytest.raises(HoldfastError, match='below `if __name__ == "__main__":`'):
        train(tables())


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_plans_make_no_difference_to_an_own_model(
    tmp_path, capsys, caplog, monkeypatch, fork_server
):
    """Dropout, tied weights and two tensors at the boundary, with stages and without. A callback
    that raises is told and changes nothing; a log has every step.
    """
    lent = "holdfast.runtime.launch.launcher.ForkServer"
    monkeypatch.setattr(lent, lambda *_: nullcontext(fork_server))
    found = []
    for name, parallel in (("one", {}), ("two", {"stages": 2, "recompute": True})):
        steps: list[StepDone] = []
        job = tables(parallel=parallel, log={"to": ["csv"]})
        job["job"] = {**JOB["job"], "run_dir": str(tmp_path / name)}
        report = train(
            job,
            model=PATH,
            callbacks=[steps.append, Failing],
            show=None if name == "one" else print,
        )
        assert report.outcome == "finished"
        losses = [event.loss for event in steps if isinstance(event, StepDone)]
        found.append((losses, read_final(tmp_path / name)))
        assert ("step 3/3" in capsys.readouterr().out) == (name == "two")
        said = [record.getMessage() for record in caplog.records if record.name == "holdfast"]
        assert len(said) == 1, "the callback raises once, and is called for every step"
        assert said[0].splitlines()[-1].endswith("KeyError: 'mine'; the training goes on")
        assert __file__ in said[0].splitlines()[1]
        caplog.clear()
        logged = (tmp_path / name / "log" / "metrics.csv").read_text()
        assert re.findall(r"^(\d+),train/loss", logged, re.M) == ["1", "2", "3"]
    (losses, ours), (others, theirs) = found
    assert losses == pytest.approx(others, rel=1e-12)
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-9, atol=1e-12)
