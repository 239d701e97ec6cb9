"""A tensor group of threads in one process: the quick double of a group of processes."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Result = TypeVar("Result")


class Board:
    """Where the members of one group lay down what they bring."""

    def __init__(self, size):
        self.slots = [None] * size
        self.barrier = threading.Barrier(size, timeout=30)


class ThreadGroup:
    def __init__(self, rank, board):
        self.rank, self.board = rank, board
        self.size = len(board.slots)
        self.num_calls = 0

    def all_reduce(self, tensor, op="sum"):
        assert tensor.is_contiguous()
        self.num_calls += 1
        self.board.slots[self.rank] = tensor.detach().clone()
        self.board.barrier.wait()
        brought = torch.stack(list(self.board.slots))
        # All are done reading before any worker writes for the next call.
        self.board.barrier.wait()
        with torch.no_grad():
            tensor.copy_(brought.sum(0) if op == "sum" else brought.amax(0))


def run_threads(size: int, work: Callable[[ThreadGroup], Result]) -> list[Result]:
    """`work(group)` as every member of a group of `size`; the results in rank order."""
    board = Board(size)

    def member(rank):
        try:
            return work(ThreadGroup(rank, board))
        except BaseException:
            board.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(member, rank) for rank in range(size)]
        errors = [error for future in futures if (error := future.exception()) is not None]
        # The first to fail breaks the barrier for the others; its error is the interesting one.
        for error in errors:
            if not isinstance(error, threading.BrokenBarrierError):
                raise error
        return [future.result() for future in futures]
