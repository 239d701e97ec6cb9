"""Own modules as a model: shapes, tied weights, dropout by number, tensor styles, refusals."""

import pytest
import torch
from torch import nn

from engine.thread_group import run_threads
from holdfast import column, cross_entropy, replicated, row, sequential, vocabulary
from holdfast.engine.random import Numbers
from holdfast.engine.tensor_parallel import LocalGroup
from holdfast.engine.unit_module import Call, UnitPlacement
from holdfast.errors import HoldfastError, UserCodeError
from holdfast.models.foreign import without_memory
from holdfast.models.sequential import sequential_model
from holdfast.models.styles import Style, styles_in
from holdfast.models.tracing import zeros_for
from holdfast.plan.units import Split
from support.unit_runs import run_units

VOCAB, DIM = 20, 8


class Embed(nn.Module):
    def __init__(self, drop=0.0, styled=True):
        super().__init__()
        table = nn.Embedding(VOCAB, DIM, padding_idx=3)
        self.table = vocabulary(table, parts=10) if styled else table
        self.drop = nn.Dropout(drop)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        return self.drop(self.table(tokens)), places


class Block(nn.Module):
    """`inner` sees a share of the data where the block is cut."""

    def __init__(self, drop=0.0):
        super().__init__()
        self.norm = replicated(nn.LayerNorm(DIM))
        self.up = column(nn.Linear(DIM, 20), parts=5)
        self.inner, self.drop = nn.LayerNorm(4), nn.Dropout(drop)
        self.down = row(nn.Linear(20, DIM), parts=5)
        self.register_buffer("scale", torch.tensor(0.1))

    def forward(self, hidden, places):
        inside = self.inner(self.up(self.norm(hidden)).unflatten(-1, (-1, 4))).flatten(-2)
        return hidden + self.down(self.drop(inside.tanh())) + places[..., None] * self.scale, places


class Head(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.out = vocabulary(nn.Linear(DIM, VOCAB, bias=False), parts=10)
        self.out.weight = table.weight

    def forward(self, hidden, places):
        return self.out(self.norm(hidden))


def build(drop=0.0, inner_drop=0.0):
    embed = Embed(drop)
    return sequential([embed, Block(inner_drop), Block(), Head(embed.table)])


def model_of(make, seed=3):
    with without_memory():
        made = make()
    return sequential_model(made, make, seed)


def a_batch():
    tokens = torch.randint(VOCAB, (2, 7), generator=torch.Generator().manual_seed(1))
    tokens[0, 0], targets = 3, tokens.roll(-1, 1)
    targets[1, 2] = -100
    return tokens, targets


def run_member(group, model, step=0):
    units = []
    for number in range(len(model.parts)):
        place = UnitPlacement(group.rank, group.size, torch.float64)
        units.append(model.build_unit(number, place))
    for unit in units:
        for name, parameter in unit.tensors.items():
            model.fill(parameter, name, unit.boxes[name])
    tokens, targets = a_batch()
    loss = run_units(units, tokens, Call(group, targets, Numbers(5, step, 0)))
    loss.backward()
    return loss.detach(), units


def plain_run(make, seed=3):
    """The same modules, called one after the other."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        made = make()
    tokens, targets = a_batch()
    x = (tokens,)
    for unit in made.units:
        unit.double()
        x = unit(*x)
        x = x if isinstance(x, tuple) else (x,)
    loss = cross_entropy(*x, targets)
    loss.backward()
    return loss.detach(), made


def test_units_are_found_out():
    model = model_of(build)
    embed, block, _, head = model.units(2, 7, torch.float32)
    assert [spec.name for spec in embed.tensors] == ["unit.0.table.weight"]
    assert head.tensors[-1] == embed.tensors[0], "tied: one tensor, named by its first unit"
    assert {spec.name: spec.split for spec in block.tensors} == {
        "unit.1.norm.weight": None,
        "unit.1.norm.bias": None,
        "unit.1.up.weight": Split(0, 5),
        "unit.1.up.bias": Split(0, 5),
        "unit.1.inner.weight": None,
        "unit.1.inner.bias": None,
        "unit.1.down.weight": Split(1, 5),
        "unit.1.down.bias": None,
    }
    assert block.forward == pytest.approx(2 * 2 * 14 * DIM * 20 / 1e12)
    assert embed.boundary_bytes == 14 * (DIM * 4 + 8)
    hidden, places = model.boundary(1, 3, 5, torch.float64)
    assert hidden == ((3, 5, DIM), torch.float64, True)
    assert places == ((3, 5), torch.int64, False)


@pytest.mark.parametrize("tensor", [1, 2, 3])
@pytest.mark.slow
def test_loss_and_gradients_are_those_of_the_modules(tensor):
    expected, made = plain_run(build)
    models = [model_of(build) for _ in range(tensor)]
    for model in models:
        if tensor > 1:
            model.check_tensor(tensor)
        model.traces(2, 6, tensor)
    results = run_threads(tensor, lambda group: run_member(group, models[group.rank]))
    parameters = {
        f"unit.{number}.{path}": parameter
        for number, unit in reversed(list(enumerate(made.units)))
        for path, parameter in unit.named_parameters()
    }
    for name in {name for part in models[0].parts for name in part.names.values()}:
        whole = torch.zeros_like(parameters[name])
        for member, (loss, units) in enumerate(results):
            assert loss == pytest.approx(float(expected), rel=1e-12)
            for unit in units:
                if name in unit.tensors and (unit.gradient_kind[name] != "same" or member == 0):
                    index = tuple(slice(low, high) for low, high in unit.boxes[name])
                    whole[index] += unit.tensors[name].grad
        torch.testing.assert_close(whole, parameters[name].grad, rtol=1e-10, atol=1e-12)


def test_styles_stay_on_the_modules():
    assert styles_in(Block())["up"] == Style("column", 5)
    assert zeros_for("text") == "text"
    assert zeros_for(torch.ones(2)).tolist() == [0.0, 0.0]


def test_dropout_is_by_number():
    def make():
        return build(drop=0.5)

    model = model_of(make)
    before = torch.get_rng_state()
    loss, units = run_member(LocalGroup(), model)
    again, _ = run_member(LocalGroup(), model_of(make))
    other, _ = run_member(LocalGroup(), model, step=1)
    assert loss == again
    assert loss != other
    assert [unit.is_random for unit in units] == [True, False, False, False]
    assert torch.equal(torch.get_rng_state(), before), "the process's own generator goes on"
    model.check_tensor(2)


class Wrong(Block):
    def forward(self, hidden, places):
        return hidden[..., 0]


class Counting(Block):
    def forward(self, hidden, places):
        self.scale += 1
        return hidden, places


def with_block(block):
    def make():
        embed = Embed()
        return sequential([embed, block(), Head(embed.table)])

    return make


def frozen():
    embed = Embed()
    embed.table.weight.requires_grad_(False)
    return sequential([embed, Head(embed.table)])


def own_loss():
    embed = Embed()
    return sequential([embed, Head(embed.table)], loss=lambda logits, targets: logits.sum())


def no_loss():
    embed = Embed(styled=False)
    return sequential([embed, Block()], loss=lambda hidden, places, targets: hidden)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (with_block(Wrong), r"unit 'unit.2' fails on torch.float32 \[2, 6\]"),
        (with_block(Counting), "unit 'unit.1' changes its buffer 'module.scale'"),
        (frozen, "freezes 'module.table.weight'"),
        (no_loss, r"the last unit returns \[2, 6, 8\], and the loss is one number"),
        (lambda: sequential([nn.Linear(2, 2)]), "has 1 units; at least 2"),
        (lambda: sequential([nn.Linear(2, 2), 5]), "unit 1 of the model is a int"),
        (lambda: sequential([nn.Linear(2, 2), nn.ReLU()]), "give vocab="),
        (lambda: sequential([column(nn.ReLU()), Block()]), "ReLU has none"),
    ],
)
def test_what_cannot_work_is_refused(make, message):
    with pytest.raises(HoldfastError, match=message):
        model_of(make).units(2, 6, torch.float32)


def test_the_cause_of_an_error_is_the_users_own():
    with pytest.raises(UserCodeError) as found:
        model_of(with_block(Wrong)).units(2, 6, torch.float32)
    assert isinstance(found.value.__cause__, TypeError)


def test_tensor_degrees_are_refused_by_name():
    def plain():
        return sequential([Embed(styled=False), nn.Sequential()], vocab=VOCAB)

    def only_column():
        return sequential([Embed(), Halved(), Head(nn.Embedding(VOCAB, DIM))])

    class Halved(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = column(nn.Linear(DIM, DIM), parts=DIM)

        def forward(self, hidden, places):
            return self.up(hidden), places

    with pytest.raises(HoldfastError, match=r"'unit.0' declares no tensor styles"):
        model_of(plain).check_tensor(2)
    with pytest.raises(HoldfastError, match="draws for"):
        model_of(lambda: build(inner_drop=0.5)).check_tensor(2)
    with pytest.raises(HoldfastError, match=r"unit 'unit.2' fails on .* with tensor 2"):
        model_of(only_column).check_tensor(2)
    with pytest.raises(HoldfastError, match="the loss is not cross_entropy"):
        model_of(own_loss)
