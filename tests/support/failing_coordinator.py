"""A light fork server whose coordinators fail when a test asks for it: once per file it puts down.

Run as a process in the place of the real one. The machine has decided by the time it fails, and
nothing of what it decided is written down or sent.
"""

import os
import runpy
from pathlib import Path
from typing import Any

from holdfast.control.coordinator import Coordinator
from holdfast.control.facts import Fact
from holdfast.runtime.launch.light_fork_server import LightForkServer

WHEN = "HOLDFAST_TEST_FAIL_WHEN"
"""In the environment: a file; as long as it is there, the next fact of the type that it names makes
the coordinator fail."""


class FailingLightServer(LightForkServer):
    MODULE = "support.failing_coordinator"


def fail_once(order: Path, fact: Fact) -> None:
    try:
        if order.read_text() != type(fact).__name__:
            return
    except FileNotFoundError:
        return
    order.unlink()
    raise ZeroDivisionError("a mistake in the coordinator")


def plant(order: Path) -> None:
    take = Coordinator.take

    def take_and_fail(self: Coordinator, fact: Fact, now_ms: int) -> Any:
        effects = take(self, fact, now_ms)
        fail_once(order, fact)
        return effects

    Coordinator.take = take_and_fail  # type: ignore[method-assign]


if __name__ == "__main__":
    plant(Path(os.environ[WHEN]))
    runpy.run_module(LightForkServer.MODULE, run_name="__main__")
