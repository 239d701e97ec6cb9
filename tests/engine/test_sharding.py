"""Parameters in parts: gathered, dropped, and their gradients summed and cut again."""

import pytest
import torch
from torch import nn

from holdfast.engine.sharding import Gathers, Packing, Scatter, ShardedTensor
from holdfast.errors import InternalError
from holdfast.plan.units import TensorSpec

SPECS = (TensorSpec("w", (5, 3)), TensorSpec("norm", (2,)), TensorSpec("v", (7, 2)))


def tensors_of(rank, degree, specs=SPECS):
    """As a member of a group sees them; a member may have no rows of a tensor."""
    return [
        ShardedTensor(
            spec.name,
            spec.whole(),
            tuple(spec.box(0, 1, r, degree) for r in range(degree)),
            rank,
            nn.Parameter(torch.empty(spec.shape)),
        )
        for spec in specs
    ]


def values_of(specs=SPECS):
    torch.manual_seed(1)
    return {spec.name: torch.randn(spec.shape) for spec in specs}


class Done:
    def wait_on_device(self):
        pass


class Gathering:
    """(LiveGroup) What the others give is known here."""

    def __init__(self, fields):
        self.fields, self.asked = fields, 0

    def gather_async(self, out, tensor):
        self.asked += 1
        out.copy_(torch.cat([f[: tensor.numel()] for f in self.fields]))
        return Done()


def packed_parts(degree, values):
    """Every member's field: its rows of all tensors, one behind the other."""
    packing = Packing(tensors_of(0, degree))
    out = torch.full((degree * packing.width,), torch.nan)
    packing.pack_rows([values[spec.name] for spec in SPECS], out)
    return list(out.view(degree, packing.width))


@pytest.mark.parametrize("degree", [2, 3, 4])
def test_rows_are_packed_and_unpacked_however_uneven(degree):
    values = values_of()
    fields = packed_parts(degree, values)
    wholes = [torch.zeros(spec.shape) for spec in SPECS]
    Packing(tensors_of(0, degree)).unpack_rows(torch.cat(fields), wholes)
    assert all(torch.equal(whole, values[s.name]) for whole, s in zip(wholes, SPECS, strict=True))


@pytest.mark.parametrize("degree", [2, 4])
def test_units_are_there_while_they_are_used(degree):
    values = values_of()
    tensors = tensors_of(degree - 1, degree)
    for tensor in tensors:
        tensor.drop()
    held = {t.name: t.rows(values[t.name], t.rank) for t in tensors if t.boxes[t.rank][0]}
    group = Gathering(packed_parts(degree, values))
    gathers = Gathers({3: (tensors, group)}, held, by_pass=[3])
    gathers.begin()
    with pytest.raises(InternalError, match="unit 3 is used, and was not asked for"):
        gathers.need(3)
    for _ in range(2):
        gathers.ask(3)
        gathers.need(3)
        assert all(torch.equal(t.parameter.data, values[t.name]) for t in tensors)
        gathers.used(3)
        assert all(not t.parameter.untyped_storage().nbytes() for t in tensors)
    gathers.ask(3)
    gathers.release(3)  # never used here, and still gathered with the others
    assert group.asked == 3


def test_a_tensor_of_two_units_stays_while_one_of_them_is_there():
    values, tensors = values_of(), tensors_of(0, 2)
    group = Gathering(packed_parts(2, values))
    held = {t.name: t.rows(values[t.name], 0) for t in tensors}
    gathers = Gathers({0: (tensors, group), 1: (tensors, group)}, held, by_pass=[])
    gathers.ask(0)
    gathers.ask(1)
    gathers.finish_before_waiting()
    gathers.release(0)
    assert torch.equal(tensors[0].parameter.data, values["w"])
    gathers.release(1)
    assert not tensors[0].parameter.untyped_storage().nbytes()


def test_units_of_groups_of_different_sizes_use_the_same_room():
    values = values_of()
    units, held = {}, {}
    for unit, degree in ((0, 2), (1, 4)):
        specs = [TensorSpec(f"{spec.name}{unit}", spec.shape) for spec in SPECS]
        tensors = tensors_of(1, degree, specs)
        units[unit] = (tensors, Gathering(packed_parts(degree, values)))
        held |= {t.name: t.rows(values[t.name[:-1]], 1) for t in tensors}
    gathers = Gathers(units, held, by_pass=[1])
    for unit in (0, 1, 1):
        gathers.ask(unit)
    gathers.finish_before_waiting()
    assert gathers.waited == 0.0
    for unit in (0, 1):
        gathers.need(unit)
        for tensor in units[unit][0]:
            assert torch.equal(tensor.parameter.data, values[tensor.name[:-1]])
        gathers.used(unit)


@pytest.mark.parametrize("degree", [2, 3, 4])
def test_each_member_gets_the_sum_of_its_rows(degree):
    grads = [values_of(), {name: 2 * value for name, value in values_of().items()}]
    staged = []
    for rank in range(2):
        tensors = tensors_of(rank, degree)
        for tensor in tensors:
            tensor.parameter.grad = grads[rank][tensor.name]
        tensors[1].parameter.grad = None  # no micro-batch of this member has passed it
        scatter = Scatter(tensors, None, [t.name for t in tensors])
        staged.append(scatter.load(torch.full((scatter.num_elements,), torch.nan)))
    total = sum(staged).view(degree, -1)
    for rank in range(degree):
        mine = tensors_of(rank, degree)
        sums = Scatter(mine, None, [t.name for t in mine]).sums(total[rank])
        for tensor in mine:
            part = tensor.rows(3 * values_of()[tensor.name], rank)
            if part.numel():
                expected = torch.zeros_like(part) if tensor.name == "norm" else part
                assert torch.allclose(sums[tensor.name], expected)
            else:
                assert tensor.name not in sums
