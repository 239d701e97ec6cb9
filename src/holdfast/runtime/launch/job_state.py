"""What a job keeps of every tensor, put into its plans: all that keeps or counts state reads it
there.
"""

from collections.abc import Callable
from importlib.metadata import version

import msgspec

from holdfast.engine.optimizer_config import OptimizerConfig
from holdfast.errors import HoldfastError
from holdfast.plan.entering import why_not_updated
from holdfast.plan.plan import Plan, StateBytes
from holdfast.plan.state import ELEMENT_BYTES, StateKind, StateSpec, adamw_state
from holdfast.plan.units import TensorSpec, Unit, with_kinds
from holdfast.runtime.config.job_file import JobConfig

SUMS_WIDER = (2, 10)
"""The version of torch from which on gradients may be summed in another dtype than their own."""


class JobState(msgspec.Struct, frozen=True):
    kept_of: Callable[[TensorSpec], StateSpec]
    gradient: str
    """The dtype in which gradients are summed."""
    compute: str
    """The dtype that units compute with."""


def state_of_job(config: JobConfig) -> JobState:
    """Found out by asking the optimizer, unless it is the one that is well known: torch takes its
    time to be imported.
    """
    dtype, precision = config.job.dtype, config.precision
    compute = precision.compute or dtype
    if ELEMENT_BYTES[compute] > ELEMENT_BYTES[dtype]:
        raise HoldfastError(
            f"precision.compute = {compute!r} is wider than job.dtype = {dtype!r}, which is what "
            f"parameters are kept in; set job.dtype = {compute!r}"
        )
    if compute != dtype:
        _check_torch(compute, dtype)
    config.optimizer.find_code(config.job.source_dir)
    config.optimizer.rate_at(0)  # a schedule of the user's is imported and tried
    kept = kept_by(config.optimizer, dtype, precision.moments)
    return JobState(kept, dtype, compute)


def _check_torch(compute: str, dtype: str) -> None:
    found = version("torch")
    if tuple(int(part) for part in found.split(".")[:2]) < SUMS_WIDER:
        raise HoldfastError(
            f"precision.compute = {compute!r} with job.dtype = {dtype!r} needs torch "
            f"{'.'.join(map(str, SUMS_WIDER))} or newer, this is {found}"
        )


def kept_by(
    optimizer: OptimizerConfig, dtype: str, moments: str = ""
) -> Callable[[TensorSpec], StateSpec]:
    """What an optimizer keeps of a tensor whose parameter is of this dtype."""
    known: dict[tuple[str, int], StateSpec] = {}

    def kept(tensor: TensorSpec) -> StateSpec:
        num_dims = len(tensor.shape)
        name = optimizer.rule_of(tensor.name, num_dims).name
        if (name, num_dims) not in known:
            found = adamw_state(dtype)
            if not optimizer.is_plain:
                found = _trace(optimizer, name, num_dims, dtype)
            known[name, num_dims] = _with_moments(found, moments)
        return known[name, num_dims]

    return kept


def _trace(optimizer: OptimizerConfig, name: str, num_dims: int, dtype: str) -> StateSpec:
    from holdfast.engine.torch_optimizers import trace

    return trace(optimizer, name, num_dims, dtype)


def _with_moments(spec: StateSpec, dtype: str) -> StateSpec:
    if not dtype:
        return spec
    own, *others = spec.kinds
    kinds = (own, *(StateKind(kind.name, dtype) for kind in others))
    return msgspec.structs.replace(spec, kinds=kinds)


def with_state(plan: Plan, state: JobState) -> Plan:
    """The plan with what this job keeps of every tensor."""
    units = with_kinds(plan.units, state.kept_of)
    real = _state_bytes(units, state)
    if plan.state_bytes not in (StateBytes(), real):
        raise HoldfastError(
            f"the plan counts {plan.state_bytes.kept} bytes of state per parameter, this job keeps "
            f"{real.kept}; leave [state_bytes] out"
        )
    found = msgspec.structs.replace(plan, units=units, state_bytes=real)
    if why := why_not_updated(found):
        raise HoldfastError(why)
    return found


def _state_bytes(units: tuple[Unit, ...], state: JobState) -> StateBytes:
    """Per parameter; of several kinds of tensors the mean, rounded up."""
    tensors = {tensor.name: tensor for unit in units for tensor in unit.tensors}.values()
    total = max(1, sum(tensor.num_elements for tensor in tensors))
    kept = sum(tensor.num_elements * tensor.kept().element_bytes for tensor in tensors)
    master = ELEMENT_BYTES[state.gradient]
    derived = 0 if state.compute == state.gradient else ELEMENT_BYTES[state.compute]
    return StateBytes(
        parameter=master + derived,
        gradient=ELEMENT_BYTES[state.gradient],
        optimizer=-(-kept // total) - master,
        derived=derived,
    )
