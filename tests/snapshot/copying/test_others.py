"""What is known of the others' versions."""

from torch import Tensor

from holdfast.snapshot.copying.others import Alone, VersionAgreement
from holdfast.snapshot.layout import Version


class Work:
    def __init__(self, vote: Tensor) -> None:
        self.vote, self.done = vote, False

    def is_completed(self) -> bool:
        return self.done

    def answer(self, least: int) -> None:
        self.vote[0] = least
        self.done = True


def test_alone_the_last_sealed_version_is_complete() -> None:
    alone = Alone()
    alone.announce(Version(1, 0), sealed=True)
    alone.announce(Version(2, 0), sealed=False)
    assert alone.complete == Version(1, 0)
    assert alone.is_settled()


def test_a_version_is_complete_when_all_have_sealed_it() -> None:
    works: list[Work] = []

    def start(vote: Tensor) -> Work:
        works.append(Work(vote))
        return works[-1]

    group = VersionAgreement(start, Version(0, 0))
    assert group.is_settled()
    group.announce(Version(1, 0), sealed=True)
    assert not group.is_settled()
    assert group.complete == Version(0, 0)
    works[0].answer(1)
    assert group.is_settled()
    assert group.complete == Version(1, 0)
    group.announce(Version(2, 0), sealed=True)
    works[1].answer(0)  # a worker gave it up
    assert group.is_settled()
    assert group.complete == Version(1, 0)


def test_answers_count_in_order() -> None:
    works: list[Work] = []

    def start(vote: Tensor) -> Work:
        works.append(Work(vote))
        return works[-1]

    group = VersionAgreement(start)
    group.announce(Version(1, 0), sealed=True)
    group.announce(Version(2, 0), sealed=True)
    works[1].answer(1)
    assert not group.is_settled()
    assert group.complete is None
    works[0].answer(1)
    assert group.is_settled()
    assert group.complete == Version(2, 0)
