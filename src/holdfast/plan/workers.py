"""Names of workers, and lists of them in a form people can read.

A worker is named by its place in the hardware, `n3.g5` (node 3, device 5), and keeps that name
for the life of the job. Lists are written as blocks, `n0-3.g0-7` (devices 0..7 of node 0, then
of node 1, ...), joined by commas, so that 98,304 workers are one short string.
"""

import re
from collections.abc import Iterator, Sequence

from holdfast.errors import HoldfastError

_NAME = re.compile(r"n(\d+)\.g(\d+)")
_BLOCK = re.compile(r"n(\d+)(?:-(\d+))?\.g(\d+)(?:-(\d+))?")


def worker_name(node: int, device: int) -> str:
    return f"n{node}.g{device}"


def parse_worker(name: str) -> tuple[int, int]:
    """`n3.g5` -> (3, 5)."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise HoldfastError(f"{name!r} is not a worker name; expected node and device, like n3.g5")
    return int(match[1]), int(match[2])


def node_of(name: str) -> str:
    return name.partition(".")[0]


def worker_grid(num_workers: int, devices_per_node: int, first_node: int = 0) -> tuple[str, ...]:
    """The first `num_workers` devices of nodes filled one after the other."""
    return tuple(
        worker_name(first_node + i // devices_per_node, i % devices_per_node)
        for i in range(num_workers)
    )


def format_workers(names: Sequence[str]) -> str:
    """The shortest block list that `parse_workers` expands to exactly `names`, in order."""
    places = [parse_worker(name) for name in names]
    return ",".join(_format_block(block) for block in _blocks(_runs(places)))


def parse_workers(text: str) -> tuple[str, ...]:
    names: list[str] = []
    for part in text.split(","):
        match = _BLOCK.fullmatch(part.strip())
        if match is None:
            raise HoldfastError(
                f"{part.strip()!r} in worker list {text!r} is not a block like n0-3.g0-7"
            )
        nodes = range(int(match[1]), int(match[2] or match[1]) + 1)
        devices = range(int(match[3]), int(match[4] or match[3]) + 1)
        if not nodes or not devices:
            raise HoldfastError(f"{part.strip()!r} in worker list {text!r} counts downwards")
        names.extend(worker_name(node, device) for node in nodes for device in devices)
    return tuple(names)


_Run = tuple[int, int, int]  # node, first device, last device
_Block = tuple[int, int, int, int]  # first node, last node, first device, last device


def _runs(places: Sequence[tuple[int, int]]) -> Iterator[_Run]:
    """Consecutive devices of one node, in the order given."""
    run: _Run | None = None
    for node, device in places:
        if run is not None and run[0] == node and run[2] + 1 == device:
            run = (node, run[1], device)
            continue
        if run is not None:
            yield run
        run = (node, device, device)
    if run is not None:
        yield run


def _blocks(runs: Iterator[_Run]) -> Iterator[_Block]:
    """Consecutive nodes with the same run of devices."""
    block: _Block | None = None
    for node, low, high in runs:
        if block is not None and block[1] + 1 == node and block[2:] == (low, high):
            block = (block[0], node, low, high)
            continue
        if block is not None:
            yield block
        block = (node, node, low, high)
    if block is not None:
        yield block


def _format_block(block: _Block) -> str:
    nodes, devices = format_range(block[0], block[1]), format_range(block[2], block[3])
    return f"n{nodes}.g{devices}"


def format_range(low: int, high: int) -> str:
    """`3` or `3-7`, both ends included."""
    return str(low) if low == high else f"{low}-{high}"


def parse_range(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", text)
    if match is None:
        raise HoldfastError(f"{text!r} is not a number or a range like 3-7")
    low, high = int(match[1]), int(match[2] or match[1])
    if low > high:
        raise HoldfastError(f"range {text!r} counts downwards: {low} > {high}")
    return low, high
