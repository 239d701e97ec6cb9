"""Work beside the training, on threads that training does not wait for."""

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Background(threading.Thread, Generic[T]):
    """One call on a thread of its own, which can be given up: what it makes is then not used."""

    def __init__(self, name: str, call: Callable[[], T]) -> None:
        super().__init__(daemon=True, name=name)
        self._call = call
        self._result: Any = None
        self.error: BaseException | None = None
        """What it failed with."""
        self.start()

    def run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:
            self.error = error

    @property
    def is_done(self) -> bool:
        return not self.is_alive() and self.error is None

    @property
    def has_failed(self) -> bool:
        return not self.is_alive() and self.error is not None

    def result(self) -> T:
        self.join()
        if self.error is not None:
            raise self.error
        made: T = self._result
        return made
