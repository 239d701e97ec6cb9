"""When it is told what the job is protected against: every change once, and no flapping.

What is better is told at once. What is worse is told when it has lasted a while: between two plans
the versions of the one go just before those of the other are whole. At the beginning it waits for
the first version, so that there is one line and not three.
"""

from holdfast.snapshot.protects import JobProtection

LASTS_MS = 1000
"""What is worse, before it is told."""
FIRST_MS = 5000
"""How long the first line waits for the first version."""


class ProtectionWatch:
    def __init__(self) -> None:
        self.told: JobProtection | None = None
        self._differs_ms: int | None = None
        """Since when what is differs from what was told; None: it does not."""

    def look(self, now: JobProtection, now_ms: int, *, is_waiting: bool) -> JobProtection | None:
        """What to tell, if anything. `is_waiting`: for a first version that is on its way."""
        if self.told is not None and now.means == self.told.means:
            self._differs_ms = None
            return None
        if self._differs_ms is None:
            self._differs_ms = now_ms
        if self.told is None:
            wait_ms = FIRST_MS if is_waiting else 0
        else:
            wait_ms = LASTS_MS if _is_worse(now, self.told) else 0
        if now_ms - self._differs_ms < wait_ms:
            return None
        has_news = self.told is None or _losses(now) != _losses(self.told)
        self.told, self._differs_ms = now, None
        return now if has_news else None


def _is_worse(now: JobProtection, before: JobProtection) -> bool:
    return not all(loss in now.against for loss in before.against)


def _losses(protection: JobProtection) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return protection.against, protection.not_against
