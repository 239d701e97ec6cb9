import subprocess
import sys

import msgspec
import pytest

from holdfast.control.worker_reports import StepReport

WITHOUT_TORCH = (
    "control.worker_reports",
    "engine.optimizer_config",
    "engine.group_keys",
    "runtime.config.job_file",
    "runtime.wire.frames",
)


def test_a_report_travels():
    report = StepReport(3, 1, 0.5, 2.25, 1.0, 64, 1e-3, True, {"0/1": 2**62})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(report), type=StepReport) == report


@pytest.mark.process
def test_who_reads_reports_needs_no_torch():
    names = ", ".join(f"holdfast.{name}" for name in WITHOUT_TORCH)
    code = f"import sys, {names}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
