"""Work of group members, importable by worker processes."""

import os
import signal
import time

import torch

from holdfast.engine.communicator import Communicator
from holdfast.engine.groups import GroupBroken
from support.cluster import Store


def reduce_until_death(
    worker: str, members: tuple[str, ...], store: tuple[int, str], victim: str
) -> tuple[str, float]:
    """All reduce again and again; the victim kills itself while the others are waiting for it.
    What a survivor is told, and how many seconds after the death.
    """
    shared = Store(*store)
    communicator = Communicator(worker, shared, backend="gloo", host="127.0.0.1", timeout_ms=20_000)
    group = communicator.make("reduce", members, 0)
    group.all_reduce(torch.ones(8))
    if worker == victim:
        for other in members:
            if other != victim:
                shared.get(f"{other} waits")
        shared.set("death", str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)
    pending = group.all_reduce_async(torch.ones(1 << 20))
    shared.set(f"{worker} waits", "")
    try:
        pending.wait()
    except GroupBroken as error:
        return str(error), time.time() - float(shared.get("death"))
    finally:
        communicator.close_all()
    raise AssertionError("a reduction without the victim came to an end")
