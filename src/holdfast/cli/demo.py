"""`holdfast demo`: train a small model on eight processes and change the plan on the way."""

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
    """Train a small Llama on eight processes, and change its plan three times while it trains.

    A stage leaves and its micro-batches pass through the other replica; then all workers are
    arranged anew; then everything is as before. The loss goes on falling.
    """
    if plans:
        from holdfast.cli.demo_story import tell

        tell(as_json=json)
        return 0
    from holdfast.cli.demo_training import train

    return train(as_json=json)
