"""A computation that is the same on every worker, timed with nothing else going on: it tells a slow
device from heavy work.
"""

import time
from typing import NamedTuple

import torch

from holdfast.engine.emulated_device import EmulatedDevice


class ProbeSize(NamedTuple):
    size: int
    num_products: int
    num_times: int
    """The shortest counts: whatever else runs on the machine makes single ones longer."""


PROCESSOR = ProbeSize(192, 4, num_times=30)
"""Many short ones: what shares a core with a worker may keep it busy for milliseconds."""
DEVICE = ProbeSize(2048, 8, num_times=7)
"""Milliseconds of a device: a small one would time how quickly its host hands over work."""
EMULATED_S = 0.01


def time_probe(
    device: torch.device, emulated: EmulatedDevice | None = None, slowness: float = 1.0
) -> float:
    """In seconds. `slowness`: how many times as long a computation takes here, on purpose."""
    if emulated is not None:
        seconds = EMULATED_S * emulated.slowness
        emulated.begin(seconds)
        return emulated.spend(seconds)
    on_device = device.type == "cuda"
    size, num_products, num_times = DEVICE if on_device else PROCESSOR
    matrix = torch.full((size, size), 1.0 / size, device=device)
    found = []
    for _ in range(num_times):
        start = time.perf_counter()
        for _ in range(num_products):
            matrix = matrix @ matrix
        if on_device:
            torch.cuda.synchronize(device)
        if slowness > 1.0:
            time.sleep((slowness - 1) * (time.perf_counter() - start))
        found.append(time.perf_counter() - start)
    return min(found)
