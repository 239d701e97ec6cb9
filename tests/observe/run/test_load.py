import pytest

from holdfast.errors import HoldfastError
from holdfast.observe.run.load import follow_run, read_events
from support.made_runs import WORKERS, disturbed_run


def test_a_run_directory_is_its_events(tmp_path):
    run = disturbed_run().end()
    follower = follow_run(run.write(tmp_path / "run"))
    expected = run.model()
    found, wanted = follower.model.goodput(), expected.goodput()
    assert found.productive_ms == pytest.approx(wanted.productive_ms, abs=0.1)
    assert found.lost_ms["detection"] == pytest.approx(wanted.lost_ms["detection"], abs=0.1)
    assert [i.title for i in follower.model.incidents] == [i.title for i in expected.incidents]
    assert sorted(follower.roles()) == sorted(WORKERS)
    assert not follower.poll()
    assert read_events(follower.run_dir).next_step == expected.next_step


def test_a_plan_that_is_not_there(tmp_path):
    follower = follow_run(disturbed_run().write(tmp_path / "run"))
    assert follower.plan("plans/none.toml") is None
    (tmp_path / "run" / "plans" / "epoch-1.toml").write_text("no plan")
    assert follow_run(tmp_path / "run").roles() == {}


def test_a_folder_without_a_run(tmp_path):
    with pytest.raises(HoldfastError, match="no run directory"):
        follow_run(tmp_path)
