"""Many seeds on several processes. What comes out does not depend on how many."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import msgspec

from holdfast.control.rules import Rules
from holdfast.errors import HoldfastError
from holdfast.sim.fuzz.run import RULES, Broken, FuzzRun, run_seed

CHUNK = 8


class Total(msgspec.Struct, frozen=True):
    num_runs: int
    num_events: int
    digest: int
    """Of all runs, in order of their seeds."""
    coverage: dict[str, int]
    broken: tuple[Broken, ...]


def run_seeds(
    seeds: Sequence[int], rules: Rules = RULES, num_processes: int = 1
) -> Iterator[FuzzRun]:
    """In order of the seeds, as they are done."""
    work = partial(run_seed, rules=rules)
    if num_processes == 1 or len(seeds) <= CHUNK:
        yield from map(work, seeds)
        return
    with ProcessPoolExecutor(num_processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(work, seeds, chunksize=CHUNK)


def add_up(runs: Iterable[FuzzRun]) -> Total:
    coverage: Counter[str] = Counter()
    broken: list[Broken] = []
    count = events = digest = 0
    for run in runs:
        count += 1
        events += run.num_events
        digest = (digest * 1_000_003 + run.digest) % 2**64
        coverage.update(run.coverage)
        if run.broken is not None:
            broken.append(run.broken)
    found = {name: number for name, number in sorted(coverage.items()) if number}
    return Total(count, events, digest, found, tuple(broken))


def rules_without(names: Iterable[str]) -> Rules:
    """All rules but these."""
    known = Rules.__struct_fields__
    off = [name.replace("-", "_") for name in names]
    for name in off:
        if name not in known:
            raise HoldfastError(f"there is no rule {name!r}; there are {', '.join(known)}")
    return Rules(**dict.fromkeys(off, False))
