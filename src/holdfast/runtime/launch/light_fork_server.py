"""The fork server of light processes: the coordinator and the agents, which need no torch.

A coordinator that was lost is back within milliseconds, because its successor is forked from here
and has all imports done.
"""

import gc
import sys

from holdfast.runtime.launch.fork_server import ForkServer, serve
from holdfast.runtime.launch.signals import ignore_signals


class LightForkServer(ForkServer):
    """The launcher's handle on it."""

    MODULE = "holdfast.runtime.launch.light_fork_server"


if __name__ == "__main__":
    ignore_signals()
    gc.disable()  # while it imports
    from holdfast.runtime.launch.light_child import run_light_child

    serve(int(sys.argv[1]), {"": run_light_child})
