"""The Llama units against the plain reference, and split against whole."""

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.gloo_group import run_processes
from engine.thread_group import run_threads
from holdfast.engine.random import LEVELS, fields, kept_levels
from holdfast.engine.tensor_parallel import LocalGroup
from holdfast.engine.unit_module import Call, UnitPlacement
from holdfast.errors import HoldfastError, InternalError
from holdfast.models.llama import (
    attend,
    build_unit,
    fill_initial,
    initial_state,
    initial_std,
    rms_norm,
    rope_rates,
    rope_tables,
    rotate,
)
from holdfast.models.presets import LlamaOptions, RopeScaling
from holdfast.plan.model_catalog import LLAMA, LlamaShape, llama_units
from models.split_runs import (
    NUMBERS,
    SEED,
    SMALL,
    a_batch,
    build,
    joined,
    relative_error,
    run_built,
    run_member,
)
from reference.model import ReferenceLlama
from support.sample import some

TIED = msgspec.structs.replace(SMALL, tied=True)
TINY = LLAMA["llama-tiny"]


def reference_run(shape, batch, mask=None, **options):
    """Loss and gradients of the independent model."""
    model = ReferenceLlama(shape, initial_state(shape, SEED, dtype=torch.float64), **options)
    loss = model(*batch, mask)
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named().items()}


def dropout_factors(probability):
    """The masks of `NUMBERS` as the reference takes them."""
    levels = kept_levels(probability)

    def mask(unit, site, shape):
        drawn = fields(NUMBERS.dropout(unit, site), shape).to(torch.float64)
        return (drawn + LEVELS // 2 < levels).to(torch.float64) * (LEVELS / levels)

    return mask


def assert_close(got, expected, limit):
    assert got.keys() == expected.keys()
    errors = {name: relative_error(got[name], expected[name]) for name in expected}
    assert max(errors.values()) < limit, errors


@pytest.mark.parametrize("shape", [SMALL, TIED, TINY], ids=["small", "tied", "llama-tiny"])
def test_whole_equals_the_reference(shape):
    batch = a_batch(shape)
    loss, gradients = reference_run(shape, batch)
    result = run_member(LocalGroup(), shape, batch)
    assert result.loss.dtype is torch.float64
    assert relative_error(result.loss, loss) < 1e-12
    assert_close(joined(shape, [result]), gradients, 1e-12)


def test_options_reach_the_model():
    batch = a_batch(SMALL)
    options = LlamaOptions(rope_theta=500.0, norm_eps=1e-2)
    loss, gradients = reference_run(SMALL, batch, theta=500.0, eps=1e-2)
    result = run_member(LocalGroup(), SMALL, batch, options)
    assert relative_error(result.loss, loss) < 1e-12
    assert_close(joined(SMALL, [result]), gradients, 1e-12)


def test_dropout_equals_the_reference_with_the_same_masks():
    batch = a_batch(SMALL)
    loss, gradients = reference_run(SMALL, batch, dropout_factors(0.25))
    result = run_member(LocalGroup(), SMALL, batch, LlamaOptions(dropout=0.25))
    plain = run_member(LocalGroup(), SMALL, batch)
    assert relative_error(result.loss, loss) < 1e-12
    assert_close(joined(SMALL, [result]), gradients, 1e-12)
    assert relative_error(plain.loss, loss) > 1e-3


@pytest.mark.parametrize("tensor", [2, 3, 4, 8])
@pytest.mark.parametrize("shape", [SMALL, TIED], ids=["untied", "tied"])
def test_split_equals_whole(shape, tensor):
    batch = a_batch(shape)
    options = LlamaOptions(dropout=0.1)
    whole = run_member(LocalGroup(), shape, batch, options)
    results = run_threads(tensor, lambda group: run_member(group, shape, batch, options))
    check_split(shape, whole, results, 1e-10)


@pytest.mark.parametrize("tensor", [2, 3, 4])
def test_the_tiny_preset_splits(tensor):
    batch = a_batch(TINY)
    whole = run_member(LocalGroup(), TINY, batch)
    results = run_threads(tensor, lambda group: run_member(group, TINY, batch))
    check_split(TINY, whole, results, 1e-10)


def check_split(shape, whole, results, limit):
    for result in results:
        for field in ("loss", "hidden", "hidden_gradient"):
            value = getattr(result, field)
            assert torch.equal(value, getattr(results[0], field)), f"{field} differs by member"
            assert relative_error(value, getattr(whole, field)) < limit
    assert_close(joined(shape, results), joined(shape, [whole]), limit)


@st.composite
def shapes_and_degrees(draw):
    kv_heads = draw(st.integers(1, 4))
    heads = kv_heads * draw(st.integers(1, 4))
    shape = LlamaShape(
        dim=heads * draw(st.sampled_from([2, 4])),
        num_layers=draw(st.integers(0, 2)),
        num_heads=heads,
        num_kv_heads=kv_heads,
        hidden=draw(st.integers(heads, 24)),
        vocab=draw(st.integers(max(heads, 2), 40)),
        tied=draw(st.booleans()),
    )
    return shape, draw(st.integers(1, min(heads, 6)))


@pytest.mark.slow
@settings(max_examples=60)
@given(shapes_and_degrees())
def test_any_shape_splits(case):
    shape, tensor = case
    batch = a_batch(shape, rows=2, length=5, ignored=2)
    loss, gradients = reference_run(shape, batch)
    results = run_threads(tensor, lambda group: run_member(group, shape, batch))
    assert all(torch.equal(result.loss, results[0].loss) for result in results)
    assert relative_error(results[0].loss, loss) < 1e-11
    # Not relative per tensor: a gradient may vanish (one token, or attention on equal values).
    whole = joined(shape, results)
    scale = max(float(gradient.norm()) for gradient in gradients.values())
    assert max(float((whole[n] - gradients[n]).norm()) for n in whole) < 1e-11 * scale


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("tensor", some([2, 3], [3]))
def test_split_over_processes_equals_whole(tensor, tmp_path):
    batch = a_batch(SMALL)
    whole = run_member(LocalGroup(), SMALL, batch)
    results = run_processes(tensor, run_member, tmp_path, SMALL, batch)
    check_split(SMALL, whole, results, 1e-10)


def test_float32_is_near_float64():
    batch = a_batch(SMALL)
    exact = run_member(LocalGroup(), SMALL, batch)
    result = run_member(LocalGroup(), SMALL, batch, dtype=torch.float32)
    assert result.loss.dtype is torch.float32
    assert relative_error(result.loss, exact.loss) < 1e-6
    exact_gradients = joined(SMALL, [exact])
    assert_close(joined(SMALL, [result]), exact_gradients, 1e-5)


@pytest.mark.parametrize("tensor", [1, 3])
def test_bfloat16_runs_with_the_loss_in_float32(tensor):
    batch = a_batch(SMALL)
    exact = run_member(LocalGroup(), SMALL, batch)
    results = run_threads(
        tensor, lambda group: run_member(group, SMALL, batch, dtype=torch.bfloat16)
    )
    assert results[0].loss.dtype is torch.float32
    assert results[0].hidden.dtype is torch.bfloat16
    assert relative_error(results[0].loss, exact.loss) < 1e-2


def test_a_block_sends_two_messages_each_way():
    def work(group):
        block = build_unit(SMALL, "block.0", UnitPlacement(group.rank, group.size), seed=SEED)
        x = torch.ones(1, 4, SMALL.dim, requires_grad=True)
        y = block(x, Call(group))
        forward = group.num_calls
        y.sum().backward()
        return forward, group.num_calls - forward

    assert run_threads(2, work) == [(2, 2), (2, 2)]


@pytest.mark.parametrize("tensor", [1, 2, 3, 4, 7])
def test_initial_values_are_slices_of_the_whole(tensor):
    whole = initial_state(TINY, SEED)
    for rank in range(tensor):
        for unit in build(TINY, UnitPlacement(rank, tensor)):
            for name, parameter in unit.tensors.items():
                at = tuple(slice(low, high) for low, high in unit.boxes[name])
                assert torch.equal(parameter, whole[name][at]), f"{name} of rank {rank}"


def test_initial_values_follow_the_seed_and_the_name():
    state = initial_state(TINY, SEED)
    other = initial_state(TINY, SEED + 1)
    assert not torch.equal(state["block.0.wq"], other["block.0.wq"])
    assert not torch.equal(state["block.0.wq"], state["block.1.wq"])
    assert torch.equal(state["head.norm"], torch.ones(TINY.dim))


def test_initial_values_have_the_spread_they_should():
    specs = {spec.name: spec for unit in llama_units(TINY) for spec in unit.tensors}
    for name, value in initial_state(TINY, SEED).items():
        std = initial_std(TINY, specs[name])
        assert std == 0 or abs(value.std() / std - 1) < 0.05, name


def test_initial_values_in_double_round_to_the_single_ones():
    spec = llama_units(TINY)[1].tensors[1]
    single, double = torch.empty(spec.shape), torch.empty(spec.shape, dtype=torch.float64)
    fill_initial(single, TINY, spec, SEED)
    fill_initial(double, TINY, spec, SEED)
    assert torch.equal(single, double.float())


def test_tied_units_may_share_one_parameter():
    batch = a_batch(TIED)
    apart = joined(TIED, [run_member(LocalGroup(), TIED, batch)])
    units = build(TIED, UnitPlacement(dtype=torch.float64))
    units[-1].adopt("embed.weight", units[0].tensors["embed.weight"])
    shared = run_built(units, LocalGroup(), batch)
    assert relative_error(shared.gradients["embed.weight"][0][2], apart["embed.weight"]) < 1e-12


def test_gradient_kinds_at_degree_three():
    kinds = [
        build_unit(SMALL, "block.0", UnitPlacement(rank, 3)).gradient_kind["block.0.wk"]
        for rank in range(3)
    ]
    # Heads 0-1, 2-4, 5-7; key-value head 2 serves heads 4 and 5.
    assert kinds == ["own", "partial", "partial"]


def test_evaluation_has_no_dropout_and_training_needs_numbers():
    block = build_unit(
        SMALL, "block.0", UnitPlacement(), options=LlamaOptions(dropout=0.5), seed=SEED
    )
    plain = build_unit(SMALL, "block.0", UnitPlacement(), seed=SEED)
    x = torch.randn(1, 4, SMALL.dim, generator=torch.Generator().manual_seed(0))
    with pytest.raises(InternalError, match=r"block\.0.*no numbers"):
        block(x, Call())
    assert torch.equal(block.eval()(x, Call()), plain(x, Call()))


@pytest.mark.parametrize("length", [1, 5, 64, 65])
def test_rotations_turn_by_relative_position(length):
    cos, sin = rope_tables(length, 8, LlamaOptions(), torch.float64, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64, generator=generator)
    rotated_q = rotate(q.expand(1, length, 1, 8), cos, sin)[0, :, 0]
    rotated_k = rotate(k.expand(1, length, 1, 8), cos, sin)[0, :, 0]
    scores = rotated_q @ rotated_k.T
    for offset in range(-length + 1, length):
        diagonal = scores.diagonal(offset)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-12)


def test_tables_do_not_depend_on_the_length_they_were_made_for():
    arguments = (8, LlamaOptions(), torch.float32, torch.device("cpu"))
    for short, long in zip(rope_tables(40, *arguments), rope_tables(300, *arguments), strict=True):
        assert torch.equal(short, long[:40])


def test_scaled_rotations():
    """Of Llama 3: fast ones stay, slow ones are slowed, between them both are mixed."""
    scaling = RopeScaling(factor=32.0)
    plain, scaled = rope_rates(64, 500_000.0), rope_rates(64, 500_000.0, scaling)
    turns = 8192 * plain / (2 * torch.pi)
    assert torch.equal(scaled[turns >= 4], plain[turns >= 4])
    torch.testing.assert_close(scaled[turns <= 1], plain[turns <= 1] / 32)
    between = (turns > 1) & (turns < 4)
    assert between.any()
    mixed = scaled[between]
    assert ((mixed < plain[between]) & (mixed > plain[between] / 32)).all()
    cos, _ = rope_tables(
        9, 64, LlamaOptions(rope_scaling=scaling), torch.float64, torch.device("cpu")
    )
    expected = torch.outer(torch.arange(9.0, dtype=torch.float64), rope_rates(64, 10000.0, scaling))
    assert torch.equal(cos[:, 0, :32], expected.cos())


def test_the_rotations_gradient():
    cos, sin = rope_tables(3, 4, LlamaOptions(rope_theta=100.0), torch.float64, torch.device("cpu"))
    x = torch.randn(2, 3, 2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: rotate(x, cos, sin), x)


@pytest.mark.parametrize("followers", [(1, 1), (2, 2), (1, 2), (3, 1), (3,)])
def test_attention_with_any_following(followers):
    generator = torch.Generator().manual_seed(0)
    count = len(followers)
    q = torch.randn(2, sum(followers), 5, 4, dtype=torch.float64, generator=generator)
    k, v = torch.randn(2, 2, count, 5, 4, dtype=torch.float64, generator=generator)
    uses = [key for key, number in enumerate(followers) for _ in range(number)]
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k[:, uses], v[:, uses], is_causal=True
    )
    torch.testing.assert_close(attend(q, k, v, followers), expected)


def test_the_norm_of_bfloat16_is_taken_in_float32():
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(3, 4096, generator=generator) * 100).bfloat16()
    weight = torch.rand(4096, generator=generator).bfloat16()
    y = rms_norm(x, weight, 1e-5)
    assert y.dtype is torch.bfloat16
    # Half a last place of bfloat16; a sum of squares in bfloat16 would be off by far more.
    torch.testing.assert_close(
        y.double(), rms_norm(x.double(), weight.double(), 1e-5), rtol=0.0042, atol=0
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_gpu_computes_the_same():
    batch = a_batch(TINY)
    options = LlamaOptions(dropout=0.1)
    expected = run_member(LocalGroup(), TINY, batch, options)
    units = build(TINY, UnitPlacement(dtype=torch.float64, device="cuda"), options)
    result = run_built(units, LocalGroup(), tuple(tensor.cuda() for tensor in batch))
    assert relative_error(result.loss.cpu(), expected.loss) < 1e-12
    for name, holders in result.gradients.items():
        assert relative_error(holders[0][2].cpu(), expected.gradients[name][0][2]) < 1e-12, name


@pytest.mark.parametrize(
    ("shape", "name", "place", "options", "message"),
    [
        (
            SMALL,
            "block.2",
            UnitPlacement(),
            LlamaOptions(),
            r"no unit 'block\.2'; .* block\.1, head",
        ),
        (SMALL, "block.0", UnitPlacement(1, 9), LlamaOptions(), r"8 parts, too few for 9"),
        (
            SMALL,
            "block.0",
            UnitPlacement(),
            LlamaOptions(dropout=1.0),
            r"dropout 1\.0 .* range 0 <=",
        ),
        (
            msgspec.structs.replace(SMALL, dim=24),
            "block.0",
            UnitPlacement(),
            LlamaOptions(),
            r"head is 3; .* even",
        ),
    ],
)
def test_bad_input_is_refused(shape, name, place, options, message):
    with pytest.raises(HoldfastError, match=message):
        build_unit(shape, name, place, options=options)


def test_the_head_wants_targets():
    head = build_unit(SMALL, "head", UnitPlacement(), seed=SEED)
    with pytest.raises(InternalError, match="no targets"):
        head(torch.zeros(1, 2, SMALL.dim), Call())


def test_a_group_of_another_size_is_refused():
    block = build_unit(SMALL, "block.0", UnitPlacement(1, 2), seed=SEED)
    with pytest.raises(InternalError, match="rank 1 of 2, the group says rank 0 of 1"):
        block(torch.zeros(1, 2, SMALL.dim), Call())
