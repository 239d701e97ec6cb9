"""[parallel] and [[change]] of a job file: how the model is laid out over workers, and when not."""

from typing import Annotated

from msgspec import Meta

from holdfast.plan.plan import Reshard
from holdfast.runtime.config.section_types import Count, Degree, Section


class ParallelSection(Section, frozen=True, kw_only=True):
    plan: str = ""
    """A plan file, which then says everything else, too."""
    replicas: Degree = 1
    """Copies of the model, which share out the micro-batches of a step."""
    stages: Degree = 1
    """Of the pipeline: each holds some of the units."""
    tensor: Degree = 1
    """Workers that share the matrices of a stage."""
    shard: Degree = 1
    """Workers that share the state of a stage, and gather it to compute (HSDP)."""
    virtual: Degree = 1
    """Stages per worker."""
    schedule: str = "1f1b"
    """gpipe, 1f1b, interleaved or zero-bubble."""
    split: str | tuple[int, ...] = "even"
    """Units per stage: even, cost, or counts like 3,4,4,3."""
    recompute: bool = False
    """Compute activations again in the backward pass instead of keeping them."""
    reshard: Reshard = "after_backward"
    """With a shard degree: gathered parameters are dropped after every pass through them
    (after_forward), or kept until the last backward pass of the step.
    """
    redundancy: bool = False
    """Every worker also holds the stage of its successor, so that one that is lost has a substitute
    also where there is one replica.
    """
    extra_in_flight: Annotated[int, Meta(ge=0, le=10**6)] = 0
    """Micro-batches a stage may begin beyond what the schedule does; 0 = none."""
    devices_per_node: Degree = 8
    """Workers of one node; a node is what is lost together."""


class ChangeSection(Section, frozen=True, kw_only=True):
    """From `at_step` on another plan; keys that are not given keep the value they had."""

    at_step: Count
    parallel: ParallelSection
