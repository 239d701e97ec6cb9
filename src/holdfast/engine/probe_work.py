"""A computation that is the same on every worker, timed with nothing else going on: it tells a slow
device from heavy work.
"""

import time

import torch

from holdfast.engine.emulated_device import EmulatedDevice

SIZE, NUM_PRODUCTS = 192, 4
DEVICE_SIZE, NUM_DEVICE_PRODUCTS = 2048, 8
"""Milliseconds of a device: a small one would time how quickly its host hands over work."""
NUM_TIMES = 7
"""The shortest counts: whatever else runs on the machine makes single ones longer."""
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
    size, num_products = (DEVICE_SIZE, NUM_DEVICE_PRODUCTS) if on_device else (SIZE, NUM_PRODUCTS)
    matrix = torch.full((size, size), 1.0 / size, device=device)
    found = []
    for _ in range(NUM_TIMES):
        start = time.perf_counter()
        for _ in range(num_products):
            matrix = matrix @ matrix
        if on_device:
            torch.cuda.synchronize(device)
        if slowness > 1.0:
            time.sleep((slowness - 1) * (time.perf_counter() - start))
        found.append(time.perf_counter() - start)
    return min(found)
