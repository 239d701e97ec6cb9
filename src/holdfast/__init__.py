"""Holdfast keeps hybrid-parallel LLM training running while parts of the cluster fail under it.

    from holdfast import Snapshotter    # snapshots in any PyTorch training loop
    from holdfast import RandomState    # Python's, numpy's and torch's, as part of them

Importing the package costs nothing: torch is imported with the first name that needs it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.snapshot.loop.random_state import RandomState
    from holdfast.snapshot.loop.snapshotter import Snapshotter

__all__ = ["RandomState", "Snapshotter", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "Snapshotter":
        from holdfast.snapshot.loop.snapshotter import Snapshotter

        return Snapshotter
    if name == "RandomState":
        from holdfast.snapshot.loop.random_state import RandomState

        return RandomState
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
