"""What the page may do to a job: the same as `holdfast inject`, and a stop."""

import hmac
import os
from pathlib import Path

from holdfast.cli.run_control import inject_fault, stop_job
from holdfast.runtime.faults.kinds import FAULT_KINDS
from holdfast.runtime.wire.secret import read_secret


class JobControl:
    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self.kinds = FAULT_KINDS

    def allows(self, secret: str) -> bool:
        known = read_secret(self._run_dir, os.environ)
        return hmac.compare_digest(secret.encode(), known.encode())

    def inject(self, kind: str, target: str) -> str:
        return inject_fault(self._run_dir, kind, {"target": target} if target else {})

    def stop(self) -> str:
        return stop_job(self._run_dir)
