"""Bits without bytes: every value that a worker could hold is a number, and two are the same number
only if they came about in the same way.
"""

from collections.abc import Hashable

from holdfast.control.report import Outcome

SymbolicGradient = tuple[str, int, int]
"""(worker, unit that adds, micro-batch)."""


class Values:
    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._sums: dict[int, tuple[SymbolicGradient, ...]] = {}
        self._outcomes: dict[int, int] = {0: 0}
        self._last: dict[int, Outcome] = {}
        self._recent: tuple[Outcome | None, int] = (None, 0)

    def number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers) + 1)

    def summed(self, contributions: list[SymbolicGradient]) -> int:
        """The result of an exchange."""
        key = tuple(sorted(contributions))
        number = self.number(("sum", key))
        self._sums[number] = key
        return number

    def contributions(self, result: int) -> tuple[SymbolicGradient, ...]:
        return self._sums[result]

    def outcome(self, outcome: Outcome) -> int:
        """Asked for every element that an outcome updates."""
        if self._recent[0] is not outcome:
            self._recent = (outcome, self.number(outcome))
        return self._recent[1]

    def updated(self, history: int, result: int, outcome: Outcome) -> int:
        """An element's history, one update further."""
        ended = self.outcome(outcome)
        number = self.number(("update", history, result, ended))
        self._outcomes[number] = self.number(("then", self._outcomes[history], ended))
        self._last[number] = outcome
        return number

    def last_outcome(self, history: int) -> Outcome | None:
        """Of the last step that changed it."""
        return self._last.get(history)

    def outcomes_of(self, history: int) -> int:
        """Stands for the outcomes of all steps that led there."""
        return self._outcomes[history]
