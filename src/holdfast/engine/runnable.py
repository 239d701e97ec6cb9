"""What the engine can run, apart from torch: jobs are checked where there is none."""

from holdfast.errors import HoldfastError
from holdfast.plan.entering import why_not_runnable
from holdfast.plan.plan import Plan


def check_runnable(plan: Plan) -> None:
    """What the engine does not do yet is refused before anything starts."""
    if why := why_not_runnable(plan):
        raise HoldfastError(why)
