"""[emulate] of a job file: devices and links of another speed than those there are."""

from typing import Annotated

from msgspec import Meta

from holdfast.engine.emulation import Emulation
from holdfast.runtime.config.section_types import Section, default_of

Speeds = dict[str, Annotated[float, Meta(gt=0, le=1e6)]]


class EmulateSection(Section, frozen=True, kw_only=True):
    profile: str = ""
    """A file of costs in seconds, like the profile.json of another run."""
    unit_ms: Annotated[float, Meta(ge=0, le=3_600_000)] = 0.0
    """Instead of a file: the time of a block's forward pass over full rows; the others follow
    from the model. 0 and no file = nothing is emulated.
    """
    speed: Speeds = {}
    """Of workers (n0.g1) and nodes (n0), relative to that; 0.5 = half as fast."""
    latency_ms: Annotated[float, Meta(ge=0, le=3_600_000)] = 0.0
    """Of every link, and of every link of a reduction's ring; 0 = as the file says."""
    bandwidth_mb_per_s: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    """The same; 0 = as the file says, or not limited."""
    link_speed: Speeds = {}
    """Of single links, one way (n0>n1, n0.g1>n1.g0); 0.5 = half as fast."""
    noise: Annotated[float, Meta(ge=0, le=0.25)] = default_of(Emulation, "noise")
    """Of every computation's time, relative to it; 0 = none."""
    attention: Annotated[float, Meta(ge=0, le=1)] = default_of(Emulation, "attention")
    """The share of a block's time that grows with the squared lengths of documents."""

    @property
    def is_on(self) -> bool:
        return bool(self.profile or self.unit_ms)
