"""What the engine can run, apart from torch: jobs are checked where there is none."""

from holdfast.errors import HoldfastError
from holdfast.plan.holders import HolderMap
from holdfast.plan.plan import Plan

DTYPE_BYTES = {"float32": 4, "float64": 8, "bfloat16": 2}


def check_runnable(plan: Plan) -> None:
    """What the engine does not do yet is refused before anything starts."""
    for stage in plan.stages:
        for axis, degree in stage.axes:
            if axis != "tensor" and degree > 1:
                raise HoldfastError(
                    f"stage {stage.name} has {axis} degree {degree}; the engine runs only the "
                    f"tensor axis so far, so {axis} must be 1"
                )
    holders = HolderMap(plan)
    for worker in plan.workers:
        for tensor, boxes in holders.slices(worker).items():
            if len(boxes) > 1:
                raise HoldfastError(
                    f"{worker} would hold {tensor} in {len(boxes)} cuts, as its stages have "
                    f"different tensor degrees; the engine holds one, so make them equal"
                )
