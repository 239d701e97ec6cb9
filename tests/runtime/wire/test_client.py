import pytest

from holdfast.errors import HoldfastError
from holdfast.runtime.launch.store import bind
from holdfast.runtime.wire.client import NotRunning, ask
from holdfast.runtime.wire.messages import StatusRequest
from holdfast.runtime.wire.secret import write_secret


def test_a_folder_without_a_run(tmp_path):
    with pytest.raises(HoldfastError, match="is not the folder of a run"):
        ask(tmp_path, "status", StatusRequest(), {})


def test_a_run_that_is_over(tmp_path):
    with bind("127.0.0.1", 0) as listener:
        host, port = listener.getsockname()
    (tmp_path / "address").write_text(f"{host}:{port}\n")
    (tmp_path / "job.toml").write_text("[job]\nsteps = 1\n")
    write_secret(tmp_path, "x" * 32)
    with pytest.raises(NotRunning, match=f"no coordinator answers at {host}:{port}"):
        ask(tmp_path, "status", StatusRequest(), {})
