"""`holdfast fuzz`: the control plane under every kind of failure, by seeds."""

from typing import Annotated

from cyclopts import Parameter


def _option(text: str, *names: str) -> Parameter:
    return Parameter(name=names or None, help=text, negative="", show_default=False)


def fuzz(
    *,
    seed: Annotated[int | None, _option("Run this seed only.")] = None,
    start: Annotated[int | None, _option("The first seed. [default: 0]")] = None,
    seeds: Annotated[int | None, _option("How many seeds to run. [default: 200]")] = None,
    jobs: Annotated[int, _option("Processes to use. [default: one per core]", "--jobs", "-j")] = 0,
    json: Annotated[bool, _option("Print numbers for other programs instead.")] = False,
) -> int:
    """Let workers, nodes, the coordinator and the network fail in a simulated job, and check the
    promises of the design.

    holdfast fuzz --start 1000000 --seeds 2000
    """
    from holdfast.cli.fuzz_run import chosen_seeds, run_fuzz

    return run_fuzz(chosen_seeds(seed, start, seeds), jobs, as_json=json)
