"""Hardware by name: costs of a model on devices without a measurement.

Every profile made here says in `source` what was measured and what is assumed. Measured, on one
NVIDIA H200 (torch 2.11, eager, bf16, median of 9): how long one block of Llama 7B, 13B and 70B
takes on one tensor rank, for tensor degrees 1 to 8 and 4,096 or 8,192 tokens, without
communication. Only ratios to degree 1 are used for other devices.

Rules for what lies between and beyond the measured points:

    - the ratio depends on the work of a block (its forward operations per micro-batch): linear in
      the logarithm of the work between two rows, the nearest row outside of them;
    - a higher degree is never slower than a lower one, which the smallest blocks contradict by
      3 %, the time of a few kernel launches;
    - degrees above 8 keep the efficiency of degree 8;
    - communication comes on top: four all-reduces of a block's boundary tensor per micro-batch,
      as a ring within the node.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from math import log

import msgspec

from holdfast.errors import HoldfastError
from holdfast.plan.profile import Link, Profile, UnitCost
from holdfast.plan.units import Unit

MAX_TENSOR = 16

BLOCK_MS = {
    1.658: (9.0351, 5.0336, 3.7104, 3.1329, 2.9644, 2.9640, 2.5000, 2.5704),
    2.598: (13.3768, 7.1155, 5.2402, 4.3314, 3.9590, 3.6138, 3.4007, 3.4494),
    3.316: (20.7130, 10.9285, 7.5535, 5.9029, 5.2792, 4.6518, 4.3258, 3.9582),
    5.197: (30.6883, 15.7466, 10.9637, 8.3396, 7.1726, 6.3613, 5.6298, 5.0734),
    7.009: (34.6524, 17.5233, 12.3280, 8.8775, 7.8799, 6.7971, 5.8531, 5.3431),
    14.019: (72.7809, 37.3634, 26.4018, 19.2254, 16.2357, 13.6620, 11.9007, 10.0002),
}
"""Forward operations of a block (10^12) -> forward and backward milliseconds at degree 1 .. 8."""


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of device, its links and its memory. Bandwidths are per device and direction."""

    name: str
    teraflops: float
    """Reached in training, 10^12 operations per second."""
    device_bytes: int
    within_node: Link
    between_nodes: Link
    reduce: Link
    update: float
    """Seconds of the optimizer per parameter."""
    source: str


_ASSUMED = "links, memory speed and reductions assumed from data sheets"

HARDWARE = {
    "a100": Hardware(
        name="a100",
        teraflops=0.45 * 312,
        device_bytes=80 * 2**30,
        within_node=Link(5e-6, 240e9),
        between_nodes=Link(1e-5, 22e9),
        reduce=Link(1e-5, 20e9),
        update=28 / 1.6e12,
        source=f"assumed: A100, 45 % of 312 TFLOP/s; {_ASSUMED}",
    ),
    "h100": Hardware(
        name="h100",
        teraflops=0.45 * 989,
        device_bytes=80 * 2**30,
        within_node=Link(5e-6, 360e9),
        between_nodes=Link(1e-5, 45e9),
        reduce=Link(1e-5, 40e9),
        update=28 / 2.6e12,
        source=f"assumed: H100, 45 % of 989 TFLOP/s; {_ASSUMED}",
    ),
    "h200": Hardware(
        name="h200",
        teraflops=570.0,
        device_bytes=141 * 10**9,
        within_node=Link(5e-6, 360e9),
        between_nodes=Link(1e-5, 45e9),
        reduce=Link(1e-5, 40e9),
        update=28 / 3.8e12,
        source=f"measured on one H200: time of a block (570 TFLOP/s at 4,096 tokens); {_ASSUMED}",
    ),
}


def hardware(name: str) -> Hardware:
    if name not in HARDWARE:
        raise HoldfastError(f"hardware {name!r} is unknown; known: {', '.join(HARDWARE)}")
    return HARDWARE[name]


def hardware_profile(name: str, units: Sequence[Unit]) -> Profile:
    """Costs in seconds of a model whose units carry operation counts (10^12), as the catalog's."""
    device = hardware(name)
    return Profile(
        source=f"{device.source}; tensor degrees measured on one H200, all-reduces added",
        unit={unit.name: _seconds(unit, device) for unit in units},
        tensor=tensor_factors(units, device),
        within_node=device.within_node,
        between_nodes=device.between_nodes,
        reduce=device.reduce,
        update=device.update,
    )


def _seconds(unit: Unit, device: Hardware) -> UnitCost:
    own = UnitCost(unit.forward, unit.backward_input, unit.backward_weight)
    return own.scaled(1 / device.teraflops)


def tensor_factors(units: Sequence[Unit], device: Hardware) -> dict[int, float]:
    """Time at a tensor degree relative to degree 1, communication included."""
    block = _typical(units)
    alone = 3 * block.forward / device.teraflops
    factors: dict[int, float] = {1: 1.0}
    for degree in range(2, MAX_TENSOR + 1):
        link = device.within_node
        ring = 2 * (degree - 1) / degree * link.occupancy(block.boundary_bytes)
        messages = 4 * (ring + 2 * (degree - 1) * link.latency)
        factors[degree] = compute_factor(block.forward, degree) + messages / alone
    return factors


def _typical(units: Sequence[Unit]) -> Unit:
    """The block in the middle of the model."""
    return units[len(units) // 2]


def compute_factor(work: float, degree: int) -> float:
    """Time of a block at a tensor degree relative to degree 1, without communication."""
    rows = sorted(BLOCK_MS)
    at = min(max(bisect_left(rows, work), 1), len(rows) - 1)
    low, high = rows[at - 1], rows[at]
    inside = min(max(work, low), high)
    weight = (log(inside) - log(low)) / (log(high) - log(low))
    return (1 - weight) * _row_factor(low, degree) + weight * _row_factor(high, degree)


def _row_factor(row: float, degree: int) -> float:
    times = list(accumulate(BLOCK_MS[row], min))
    measured = min(degree, len(times))
    return times[measured - 1] / times[0] * measured / degree
