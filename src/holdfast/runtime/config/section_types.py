"""What the sections of a job file are made of: numbers with their ranges, and defaults."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

# Every number has its range; the upper ends are far beyond what makes sense, so that a slip of the
# keyboard is refused before it is a size of memory. What 0 means is said where 0 is allowed.
Count = Annotated[int, Meta(ge=1, le=10**9)]
Natural = Annotated[int, Meta(ge=0, le=10**9)]
Degree = Annotated[int, Meta(ge=1, le=100_000)]
Size = Annotated[int, Meta(ge=1, le=10**7)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Milliseconds = Annotated[int, Meta(ge=1, le=86_400_000)]
Fraction = Annotated[float, Meta(ge=0, lt=1)]


def default_of(settings: type[msgspec.Struct], name: str) -> Any:
    """What a setting is where the job file does not say it: what the part that uses it says."""
    return {field.name: field.default for field in msgspec.structs.fields(settings)}[name]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table of the job file."""
