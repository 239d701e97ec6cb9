"""What the copies of snapshots come to: how much was copied, where, and what training waited."""

import msgspec


class CopyCost(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of one worker's version, or of several together."""

    num_bytes: int = 0
    in_bubbles: int = 0
    """Of the bytes: copied while training waited for something else."""
    wait_s: float = 0.0
    """What training waited for copies; of several workers, the one that waited longest."""

    def beside(self, other: "CopyCost") -> "CopyCost":
        """Of two workers at the same time: one waits for the other, not for both."""
        return CopyCost(
            self.num_bytes + other.num_bytes,
            self.in_bubbles + other.in_bubbles,
            max(self.wait_s, other.wait_s),
        )
