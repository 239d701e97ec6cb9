import msgspec
import pytest

from holdfast.control.order import Order, PlanWithout, SamePlan, Share
from holdfast.errors import InternalError
from holdfast.runtime.coordinator.order_deltas import (
    KEPT_ORDERS,
    OrderPacker,
    OrderUnpacker,
    from_runs,
    pack_share,
    to_runs,
    unpack_share,
)
from holdfast.runtime.wire.frames import pack

NAMES = [f"n{i}.g0" for i in range(1000)]


def order(number: int, without: tuple[str, ...] = (), **incarnations: int) -> Order:
    names = {name: 1 for name in NAMES if name not in without}
    return Order(
        number=number,
        kind="recover",
        plan=PlanWithout(1, without) if without else SamePlan(1),
        incarnations=names | {name.replace("_", "."): n for name, n in incarnations.items()},
    )


def shared(whole: Order, share: Share | None) -> Order:
    return msgspec.structs.replace(whole, share=share)


def test_what_arrives_is_the_whole_order_with_the_own_share():
    packer, unpacker = OrderPacker(), OrderUnpacker()
    first, second = order(1), order(2, ("n7.g0",), n3_g0=2)
    share = Share(step=4, base=1, keep=((0, 0),))
    assert unpacker.unpack(packer.pack(first, {"n0.g0": None}, 0)) == {"n0.g0": first}
    told = unpacker.unpack(packer.pack(second, {"n0.g0": share, "n0.g1": None}, 1))
    assert told == {"n0.g0": shared(second, share), "n0.g1": second}


def test_only_the_difference_travels():
    packer = OrderPacker()
    whole = len(pack(packer.pack(order(1), {"n0.g0": None}, 0)))
    less = len(pack(packer.pack(order(2, ("n7.g0",)), {"n0.g0": None}, 1)))
    assert whole > 8000
    assert less < 250


def test_who_has_just_connected_gets_all_of_it():
    packer = OrderPacker()
    packer.pack(order(1), {}, 0)
    late = order(2, ("n7.g0",))
    assert OrderUnpacker().unpack(packer.pack(late, {"n0.g0": None}, 0)) == {"n0.g0": late}


def test_who_is_too_far_behind_gets_all_of_it():
    packer, last = OrderPacker(), KEPT_ORDERS + 2
    for number in range(1, last + 1):
        message = packer.pack(order(number), {"n0.g0": None}, 1)
    assert message.since == 0
    assert OrderUnpacker().unpack(message) == {"n0.g0": order(last)}


def test_a_difference_to_something_unknown_is_a_bug():
    packer = OrderPacker()
    packer.pack(order(1), {}, 0)
    with pytest.raises(InternalError, match="completes order 1, the last one here is 0"):
        OrderUnpacker().unpack(packer.pack(order(2), {"n0.g0": None}, 1))


@pytest.mark.parametrize("numbers", [(), (3,), (0, 1, 2, 5, 6), (2, 1, 0), (7, 7)])
def test_runs_keep_order_and_repetition(numbers):
    assert from_runs(to_runs(numbers)) == numbers


def test_a_share_comes_back_the_same_and_is_small():
    share = Share(
        step=4,
        base=1,
        keep=((0, 0),),
        losses=(3, 4, 5),
        micro_batches=tuple(range(500)),
        recompute={(0, 0, 0): tuple(range(500)), (1, 0, 1): (3, 9)},
    )
    assert unpack_share(pack_share(share)) == share
    assert len(pack_share(share)) < 200
    assert unpack_share(pack_share(None)) is None
