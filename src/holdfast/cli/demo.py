"""`holdfast demo`: train a small model, break it five times, and prove that nothing was lost."""

from typing import Annotated

from cyclopts import Parameter

from holdfast.cli.arguments import SWITCH


def demo(
    *,
    plans: Annotated[
        bool,
        Parameter(
            help="Only draw: what a slow and a lost worker do to a step of a large model.",
            **SWITCH,
        ),
    ] = False,
    short: Annotated[
        bool,
        Parameter(help="A third of the steps, and only the last three of the faults.", **SWITCH),
    ] = False,
    json: Annotated[
        bool, Parameter(help="Print the numbers for other programs.", **SWITCH)
    ] = False,
) -> int:
    """Train a small Llama on 6 emulated devices (3 replicas x tensor 2) while a worker
    becomes slow, a node is away for a while, the coordinator is killed, a worker hangs and one is
    killed; then compare it with the same job undisturbed, and with dropping whole replicas.
    """
    if plans:
        from holdfast.cli.demo_story import tell

        tell(as_json=json)
        return 0
    if not json:  # at once: torch takes seconds to come
        print("The same job twice: first undisturbed ...", flush=True)
    from holdfast.cli.demo_training import FULL, SHORT, train

    return train(SHORT if short else FULL, as_json=json)
