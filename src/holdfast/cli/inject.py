"""`holdfast inject`: a fault on purpose, into a running job.

Only the command line is here; what it does is imported when it runs.
"""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def inject(
    run_dir: Annotated[Path, Parameter(help="The run directory of the job.")],
    fault: Annotated[
        str,
        Parameter(
            help="SIGKILL, SIGTERM, SIGSTOP, SIGCONT, SIGINT, SEGFAULT, OS_ABORT, WORKLOAD_EXC, "
            "LOCK_GIL, GPU_ERROR, NAN_STATE, SLOW, SLOW_LINK, NODE_LOSS, COORDINATOR_LOSS, "
            "PARTITION, HOST_CUT or HOST_SLOW."
        ),
    ],
    /,
    *,
    target: Annotated[
        str,
        Parameter(
            help="A worker (n0.g1), a node (n0), a role (r1.s0), or random; SLOW_LINK: n0>n1."
        ),
    ] = "random",
    duration_s: Annotated[
        float,
        Parameter(
            help="Of SIGSTOP, LOCK_GIL, SLOW, SLOW_LINK, PARTITION, in s; 0 = for ever. HOST_CUT "
            "and HOST_SLOW need one."
        ),
    ] = 0.0,
    steps: Annotated[int, Parameter(help="Of SLOW, SLOW_LINK, in steps; 0 = not limited.")] = 0,
    factor: Annotated[float, Parameter(help="SLOW, SLOW_LINK: how many times slower.")] = 2.0,
    rate_mbit: Annotated[
        float, Parameter(help="HOST_SLOW: what the host sends, at most so much in a second.")
    ] = 0.0,
) -> None:
    """Do something bad to a running job, and see that it goes on."""
    from holdfast.cli.run_control import inject_fault

    given = {
        "target": target,
        "duration_s": duration_s,
        "steps": steps,
        "factor": factor,
        "rate_mbit": rate_mbit,
    }
    print(inject_fault(run_dir, fault, given))
