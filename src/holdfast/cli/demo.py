"""`holdfast demo`: what a failure does to a training step, in three pictures."""

from typing import Annotated

from cyclopts import Parameter


def demo(
    *,
    json: Annotated[
        bool,
        Parameter(help="Print the numbers for other programs.", negative="", show_default=False),
    ] = False,
) -> None:
    """Show what a slow and a lost worker do to a training step, and how it goes on.

    Nothing is trained yet: the timelines are computed from plans.
    """
    from holdfast.cli.demo_story import tell

    tell(as_json=json)
