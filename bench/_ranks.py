"""Worker processes of a benchmark, and what each of them has to tell.

Results come over a pipe for each process. A queue would need semaphores with names, which stay
behind in shared memory when a benchmark is killed; and a process that dies without a word shows at
once, since its pipe ends.
"""

import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

JOIN_S = 60.0


def run_ranks(
    work: Callable[..., None],
    args: Sequence[tuple[Any, ...]],
    *,
    timeout_s: float,
    method: str = "forkserver",
) -> list[Any]:
    """One process for each of the `args`: `work(rank, *args, results)` says `results.send(...)`
    once. What they said, by rank. Where one of them fails, none is left.
    """
    context: Any = multiprocessing.get_context(method)
    started: list[tuple[BaseProcess, Connection]] = []
    for rank, own in enumerate(args):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=work, args=(rank, *own, theirs), daemon=True)
        process.start()
        theirs.close()
        started.append((process, ours))
    try:
        found = [_result(rank, ours, timeout_s) for rank, (_, ours) in enumerate(started)]
    except BaseException:
        for process, _ in started:
            process.kill()
        raise
    finally:
        for process, _ in started:
            process.join(timeout=JOIN_S)
    return found


def _result(rank: int, results: Connection, timeout_s: float) -> Any:
    if not results.poll(timeout_s):
        raise TimeoutError(f"rank {rank} said nothing for {timeout_s:g} s")
    try:
        return results.recv()
    except EOFError:
        raise RuntimeError(f"rank {rank} ended without a result") from None
