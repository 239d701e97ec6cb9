"""A computation that is the same on every worker, timed with nothing else going on: it tells a slow
device from heavy work.
"""

import time

import torch

from holdfast.engine.emulated_device import EmulatedDevice

SIZE = 192
NUM_TIMES = 7
"""The shortest counts: whatever else runs on the machine makes single ones longer."""
EMULATED_S = 0.01


def time_probe(device: torch.device, emulated: EmulatedDevice | None = None) -> float:
    """In seconds."""
    if emulated is not None:
        seconds = EMULATED_S * emulated.slowness
        emulated.begin(seconds)
        return emulated.spend(seconds)
    matrix = torch.full((SIZE, SIZE), 1.0 / SIZE, device=device)
    found = []
    for _ in range(NUM_TIMES):
        start = time.perf_counter()
        for _ in range(4):
            matrix = matrix @ matrix
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(time.perf_counter() - start)
    return min(found)
