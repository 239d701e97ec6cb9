"""Packed documents by number, and equal to a plain model that sees each document alone."""

from itertools import accumulate

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from holdfast.control.worker_reports import Planned
from holdfast.data.documents import BareTokens
from holdfast.data.rows import Windows
from holdfast.data.token_file import open_token_file, write_token_file
from holdfast.engine.data import SyntheticTask
from holdfast.engine.epoch import TrainerConfig
from holdfast.engine.optimizer_config import OptimizerConfig
from holdfast.engine.packed import PackedTask
from holdfast.engine.row_data import RowData
from holdfast.engine.scripted import scripted_trainer
from holdfast.engine.tensor_parallel import IGNORED
from holdfast.engine.unit_module import Call, UnitPlacement
from holdfast.errors import HoldfastError
from holdfast.models.llama import attend_inside, build_unit, initial_state
from holdfast.models.model import LlamaModel
from holdfast.plan.build import regular_plan
from holdfast.plan.model_catalog import llama_units
from reference.loop import Settings, mean_gradients, train
from reference.model import ReferenceLlama
from support.live_groups import run_together
from support.training import INITIAL_SEED, RUN_SEED, SMALL
from support.unit_runs import run_units

SEED = 3


def packed(seq_len=32, rows=2, shortest=4):
    return PackedTask(SyntheticTask(SMALL.vocab, seq_len, rows, SEED), shortest)


@given(st.integers(0, 10**6), st.integers(0, 100), st.integers(1, 32))
def test_every_row_is_filled_the_same_way_every_time(step, index, shortest):
    data = packed(shortest=shortest)
    documents = data.documents(step, index)
    assert documents == packed(shortest=shortest).documents(step, index)
    assert [sum(row) for row in documents] == [32, 32]
    assert all(length >= shortest for row in documents for length in row[:-1])
    load = data.workload(step, index)
    lengths = [length for row in documents for length in row]
    assert load.tokens == 64
    assert load.squares == sum(length**2 for length in lengths)
    assert load.documents == len(lengths)


def test_some_micro_batches_are_heavy():
    data = packed(seq_len=256, rows=1)
    squares = [data.workload(step, 0).squares for step in range(300)]
    assert max(squares) > 5 * np.median(squares)


def test_the_end_of_a_document_predicts_nothing():
    data, plain = packed(), SyntheticTask(SMALL.vocab, 32, 2, SEED)
    batch, whole = data.micro_batch(5, 1), plain.micro_batch(5, 1)
    assert torch.equal(batch.tokens, whole.tokens)
    for row, lengths in enumerate(data.documents(5, 1)):
        ends = {end - 1 for end in accumulate(lengths)}
        for at in range(32):
            expected = IGNORED if at in ends else whole.targets[row, at]
            assert batch.targets[row, at] == expected


def test_documents_of_a_token_file(tmp_path):
    path = tmp_path / "tokens.bin"
    rng = np.random.default_rng(0)
    write_token_file(path, rng.integers(0, 8, 400).astype(np.uint16))
    rows = Windows(BareTokens(open_token_file(path), separator=7), 16, packed=True)
    data = RowData([rows], 16, 2, SEED, num_micro_batches=2, vocab=SMALL.vocab, packed=True)
    for index in range(2):
        batch = data.micro_batch(0, index)
        for row, lengths in enumerate(data.documents(0, index)):
            assert sum(lengths) == 16
            ends = list(accumulate(lengths))
            assert all(batch.tokens[row, end - 1] == 7 for end in ends[:-1])
            inside = [at for at in range(15) if at + 1 not in ends]
            assert all(batch.tokens[row, at] != 7 for at in inside)
            for end in ends:
                is_end = batch.tokens[row, end - 1] == 7
                assert (batch.targets[row, end - 1] == IGNORED) == is_end
        assert data.workload(0, index).tokens == 32


def test_a_shortest_document_that_does_not_fit():
    with pytest.raises(HoldfastError, match="shortest document 33 is not in the range"):
        packed(shortest=33)


def test_attention_confined_to_documents_equals_a_plain_model_on_each_of_them():
    data = packed()
    batch, documents = data.micro_batch(1, 0), data.documents(1, 0)
    assert max(len(row) for row in documents) > 2
    names = [unit.name for unit in llama_units(SMALL)]
    place = UnitPlacement(dtype=torch.float64)
    units = [build_unit(SMALL, name, place, seed=1) for name in names]
    loss = run_units(units, batch.tokens, Call(targets=batch.targets, documents=documents))
    loss.backward()
    reference = ReferenceLlama(SMALL, initial_state(SMALL, 1, dtype=torch.float64))
    alone = [
        (batch.tokens[row : row + 1, end - n : end], batch.targets[row : row + 1, end - n : end])
        for row, lengths in enumerate(documents)
        for end, n in zip(accumulate(lengths), lengths, strict=True)
    ]
    mean = mean_gradients(reference, alone)
    count = batch.num_tokens
    assert float(loss.detach()) / count == pytest.approx(mean, rel=1e-12)
    expected = {name: p.grad for name, p in reference.named().items()}
    for unit in units:
        for name, parameter in unit.tensors.items():
            found = parameter.grad / count
            assert torch.allclose(found, expected[name], rtol=1e-9, atol=1e-12), name


def test_whole_rows_are_no_documents():
    data = SyntheticTask(SMALL.vocab, 8, 1, SEED)
    batch = data.micro_batch(0, 0)
    names = [unit.name for unit in llama_units(SMALL)]
    units = [build_unit(SMALL, name, UnitPlacement(dtype=torch.float64), seed=1) for name in names]
    plain = run_units(units, batch.tokens, Call(targets=batch.targets))
    one = run_units(units, batch.tokens, Call(targets=batch.targets, documents=((8,),)))
    assert torch.equal(plain, one)
    two = run_units(units, batch.tokens, Call(targets=batch.targets, documents=((4, 4),)))
    assert not torch.allclose(plain, two)


class Losses:
    """(Listener) Of every step."""

    def __init__(self):
        self.found = []

    def step_done(self, report):
        self.found.append(report.loss)

    def plan_changed(self, report):
        pass

    def stop_requested(self):
        return False


def train_packed(data, plan):
    """A whole run, every worker on a thread."""
    store, losses = dist.HashStore(), {worker: Losses() for worker in plan.workers}

    def work(worker):
        trainer = scripted_trainer(
            worker,
            [Planned(0, plan)],
            model=LlamaModel(SMALL, seed=INITIAL_SEED),
            data=data,
            config=TrainerConfig(num_steps=2, seed=RUN_SEED, dtype="float64"),
            store=store,
            listener=losses[worker],
        )
        trainer.run()
        trainer.close()

    run_together(dict.fromkeys(plan.workers, work), {worker: worker for worker in plan.workers})
    return [told.found for told in losses.values()]


@pytest.mark.slow
def test_a_run_over_stages_and_tensor_ranks_equals_a_plain_loop_over_documents():
    data = packed(seq_len=16, rows=2, shortest=2)
    plan = regular_plan(llama_units(SMALL, 32), stages=2, tensor=2, micro_batches=3)

    def batches(step):
        return [
            (
                batch.tokens[row : row + 1, end - n : end],
                batch.targets[row : row + 1, end - n : end],
            )
            for index in range(3)
            for batch in [data.micro_batch(step, index)]
            for row, lengths in enumerate(data.documents(step, index))
            for end, n in zip(accumulate(lengths), lengths, strict=True)
        ]

    config = OptimizerConfig()
    settings = Settings(
        learning_rate=config.rate_at,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        clip_norm=config.clip_limit,
    )
    state = initial_state(SMALL, INITIAL_SEED, dtype=torch.float64)
    expected = train(SMALL, state, batches, 2, settings).losses
    for found in train_packed(data, plan):
        assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_device_computes_all_documents_at_once():
    """In bfloat16, by a kernel for varying lengths; float32 goes document by document."""
    documents = ((5, 1, 10), (16,))
    generator = torch.Generator().manual_seed(1)
    wide = [
        torch.randn(2, heads, 16, 8, generator=generator).cuda().requires_grad_()
        for heads in (4, 2, 2)
    ]
    short = [tensor.detach().bfloat16().requires_grad_() for tensor in wide]
    for followers in ((2, 2), (1, 3)):
        found, expected = (attend_inside(documents, *of, followers) for of in (short, wide))
        assert found.shape == expected.shape
        assert (found.float() - expected).norm() / expected.norm() < 2e-2
        weights = torch.randn(expected.shape, generator=generator).cuda()
        for result in (found, expected):
            result.backward(weights.to(result.dtype))
        for one, other in zip(short, wide, strict=True):
            assert (one.grad.float() - other.grad).norm() / other.grad.norm() < 2e-2
            one.grad = other.grad = None
