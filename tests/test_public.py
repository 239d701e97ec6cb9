"""What `import holdfast` offers, and what it costs."""

import subprocess
import sys

import pytest

import holdfast


@pytest.mark.process
def test_importing_it_does_not_import_torch():
    code = "import sys, holdfast; assert 'torch' not in sys.modules; holdfast.Snapshotter; " + (
        "assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_every_promised_name_is_there():
    for name in holdfast.__all__:
        assert getattr(holdfast, name) is not None
    assert dir(holdfast) == sorted(holdfast.__all__)


def test_unknown_names_are_errors():
    assert holdfast.Snapshotter.__name__ == "Snapshotter"
    with pytest.raises(AttributeError, match="no attribute 'Snapshot'"):
        holdfast.Snapshot  # noqa: B018
