"""`holdfast demo`: train a small model, break it four times, and prove that nothing was lost."""

from typing import Annotated

from cyclopts import Parameter

_SWITCH = {"negative": "", "show_default": False}


def demo(
    *,
    plans: Annotated[
        bool,
        Parameter(
            help="Only draw: what a slow and a lost worker do to a step of a large model.",
            **_SWITCH,
        ),
    ] = False,
    json: Annotated[
        bool, Parameter(help="Print the numbers for other programs.", **_SWITCH)
    ] = False,
) -> int:
    """Train a small Llama on 3 replicas x 2 stages while a worker, a node and the coordinator are
    killed and a worker hangs; then compare it with the same job undisturbed.
    """
    if plans:
        from holdfast.cli.demo_story import tell

        tell(as_json=json)
        return 0
    from holdfast.cli.demo_training import train

    return train(as_json=json)
