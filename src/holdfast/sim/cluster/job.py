"""The simulated job: what runs where, as numbers instead of names.

Devices are numbered through tensor rank, stage, pipeline, replica, innermost first, and nodes hold
consecutive devices, as in a regular plan. A *pipeline* is one chain of stages; a *replica* is the
group of pipelines that replica-level policies lose together (its pipelines share sharded state).
A *seat* is one stage of one pipeline: its devices form a tensor group.
"""

import msgspec

from holdfast.errors import HoldfastError
from holdfast.plan.model_catalog import llama_units, model_shape

STATE_BYTES = 18
"""Per parameter: 16-bit parameters, 32-bit gradients, master copy and two moments."""


class SimulatedJob(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    num_layers: int
    replicas: int
    chains: int = 1
    """Pipelines in a replica."""
    stages: int
    tensor: int
    micro_batches: int
    """Per pipeline and step."""
    layer_bytes: int = 0
    """State of one layer."""
    devices_per_node: int = 8
    spare_nodes: int = 0

    @property
    def pipelines(self) -> int:
        return self.replicas * self.chains

    @property
    def devices(self) -> int:
        return self.pipelines * self.stages * self.tensor

    @property
    def nodes(self) -> int:
        return -(-self.devices // self.devices_per_node)

    @property
    def layer_counts(self) -> tuple[int, ...]:
        """Layers of every stage: as even as possible, the longer ones last."""
        ends = [i * self.num_layers // self.stages for i in range(self.stages + 1)]
        return tuple(ends[i + 1] - ends[i] for i in range(self.stages))

    def seat(self, device: int) -> tuple[int, int]:
        """(pipeline, stage) of a device."""
        return device // (self.stages * self.tensor), device // self.tensor % self.stages

    def replica_of(self, pipeline: int) -> int:
        return pipeline // self.chains

    def node_of(self, device: int) -> int:
        return device // self.devices_per_node

    def node_devices(self, node: int) -> range:
        first = node * self.devices_per_node
        return range(first, min(first + self.devices_per_node, self.devices))


SHAPES = {
    # model: (stages, tensor)
    "llama-tiny": (2, 1),
    "llama-small": (2, 1),
    "llama-160m": (2, 1),
    "llama-1b": (2, 1),
    "llama-3b": (2, 2),
    "llama-7b": (2, 4),
    "llama-13b": (4, 4),
    "llama-30b": (8, 4),
    "llama-70b": (8, 8),
    "qwen-7b": (2, 4),
    "qwen-14b": (4, 4),
    "qwen-32b": (8, 4),
    "qwen-72b": (8, 8),
}
"""Stages and tensor degree by default. 7B to 30B as in ResiHP's evaluation."""


def make_job(
    model: str,
    devices: int,
    *,
    stages: int = 0,
    tensor: int = 0,
    replicas: int = 0,
    micro_batches: int = 0,
    spare_nodes: int = -1,
    devices_per_node: int = 8,
    tokens: int = 4096,
) -> SimulatedJob:
    """A job for a model from the catalogue; 0 (or -1 spares) means the usual value."""
    shape, layer = model_shape(model), llama_units(model_shape(model), tokens)[1]
    default = SHAPES.get(model, (1, 1))
    stages, tensor = stages or default[0], tensor or default[1]
    pipelines = _num_pipelines(devices, stages, tensor)
    replicas = replicas or usual_replicas(pipelines)
    if pipelines % replicas:
        raise HoldfastError(
            f"{pipelines} pipelines ({devices} devices / {stages} stages / {tensor} tensor) do not "
            f"form {replicas} equal replicas"
        )
    if stages > shape.num_layers:
        raise HoldfastError(f"{shape.num_layers} layers cannot fill {stages} stages")
    num_nodes = -(-devices // devices_per_node)
    return SimulatedJob(
        model=model,
        num_layers=shape.num_layers,
        replicas=replicas,
        chains=pipelines // replicas,
        stages=stages,
        tensor=tensor,
        micro_batches=micro_batches or 4 * stages,
        layer_bytes=layer.num_parameters * STATE_BYTES,
        devices_per_node=devices_per_node,
        spare_nodes=usual_spares(num_nodes) if spare_nodes < 0 else spare_nodes,
    )


def _num_pipelines(devices: int, stages: int, tensor: int) -> int:
    seats = stages * tensor
    if devices < seats or devices % seats:
        raise HoldfastError(
            f"{devices} devices are not a multiple of {seats} ({stages} stages x {tensor} tensor): "
            f"choose --devices, --stages and --tensor so that they are"
        )
    return devices // seats


def usual_replicas(pipelines: int) -> int:
    """Every pipeline by itself up to 20, or where nothing else divides; above, the divisor nearest
    to FT-HSDP's 12.
    """
    if pipelines <= 20:
        return pipelines
    divisors = [n for n in range(2, 21) if pipelines % n == 0]
    return min(divisors, key=lambda n: (abs(n - 12), n), default=pipelines)


def usual_spares(num_nodes: int) -> int:
    """4 of 1,024 machines cover 99 % of simultaneous losses (ByteRobust, Table 5); small clusters
    have none.
    """
    return -(-num_nodes * 4 // 1024) if num_nodes >= 64 else 0
