"""Directories that plain DCP wrote, into the slices of any plan."""

import pytest
import torch
import torch.distributed.checkpoint as dcp

from holdfast.errors import HoldfastError
from holdfast.models.llama import initial_state
from holdfast.plan.build import regular_plan
from holdfast.plan.model_catalog import LlamaShape, llama_units
from holdfast.plan.units import TensorSpec, Unit
from holdfast.snapshot.disk.checkpoints import choose_checkpoint
from holdfast.snapshot.disk.dcp import Checkpoint
from holdfast.snapshot.disk.persist import write_checkpoint
from holdfast.snapshot.load.assemble import Want, assemble
from holdfast.snapshot.load.catalog import STORAGE
from holdfast.snapshot.memory.arena import Version
from reference.loop import Settings, make_optimizer, mean_gradients
from reference.model import ReferenceLlama
from support.random_plans import make_units
from support.snapshots import Cluster, check_wants, random_state, wants_for

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

UNITS = make_units(6, tied=True)
PLANS = [
    regular_plan(UNITS, micro_batches=12, devices_per_node=2, **degrees)
    for degrees in (
        {"replicas": 2, "stages": 2, "tensor": 2},
        {"stages": 3},
        {"tensor": 3},
        {"shard": 2},
    )
]


def save_plain(state, folder, nested):
    names = dict.fromkeys(name for name, _ in state)
    model = {name: state[name, "parameter"] for name in names}
    moments = {
        name: {kind: state[name, kind] for kind in ("exp_avg", "exp_avg_sq")} for name in names
    }
    tree = {"model": model} if nested else dict(model)
    dcp.save(
        tree | {"optimizer": {"state": moments}, "step": 40}, checkpoint_id=folder, no_dist=True
    )


@pytest.mark.parametrize("nested", [True, False])
def test_every_plan_reads_what_plain_dcp_wrote(nested, tmp_path):
    state = random_state(PLANS[0])
    save_plain(state, tmp_path / "step-40", nested)
    checkpoint = Checkpoint(choose_checkpoint(tmp_path))
    assert checkpoint.version.step == 40
    for plan in PLANS:
        for worker in plan.workers:
            wants = wants_for(plan, worker)
            report = assemble(wants, None, checkpoint)
            check_wants(wants, state)
            assert set(report.bytes_by_origin()) == {STORAGE}
    assert checkpoint.values() == {"step": 40}


@pytest.mark.parametrize("origin", range(4))
def test_and_what_we_wrote(origin, tmp_path):
    (tmp_path / "shm").mkdir()
    cluster = Cluster(PLANS[origin], tmp_path / "shm")
    state = random_state(PLANS[origin])
    cluster.save(Version(3, 1), state)
    write_checkpoint(tmp_path, cluster.catalog(Version(3, 1)), {"step": 3})
    cluster.close()
    checkpoint = Checkpoint(choose_checkpoint(tmp_path))
    for plan in PLANS:
        wants = wants_for(plan, plan.workers[-1])
        checkpoint.read(wants)
        check_wants(wants, state)


SHAPE = LlamaShape(dim=32, num_layers=3, num_heads=8, num_kv_heads=4, hidden=40, vocab=40)


def reference_loop(model, optimizer, steps):
    """The plain loop, from any step on."""
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        tokens = torch.randint(SHAPE.vocab, (2, 9), generator=generator)
        mean_gradients(model, [(tokens[:, :-1], tokens[:, 1:])], step)
        optimizer.step()


def state_of(model, optimizer):
    return {
        (name, kind): (parameter if kind == "parameter" else optimizer.state[parameter][kind])
        for name, parameter in model.named().items()
        for kind in ("parameter", "exp_avg", "exp_avg_sq")
    }


def plain_state(model, optimizer):
    """What a plain loop saves: tensors by their global names."""
    named = model.named()
    moments = {name: dict(optimizer.state[parameter]) for name, parameter in named.items()}
    return {
        "model": {name: parameter.detach() for name, parameter in named.items()},
        "optimizer": {"state": moments},
        "step": 3,
    }


def fresh_reference():
    model = ReferenceLlama(SHAPE, initial_state(SHAPE, 1, dtype=torch.float32))
    return model, make_optimizer(model, Settings())


@pytest.mark.parametrize("degrees", [{"replicas": 2, "stages": 2, "tensor": 2}, {"tensor": 3}])
def test_the_reference_loop_goes_in_and_comes_out(degrees, tmp_path):
    """A plain loop saves with plain DCP; slices of a plan are read from it, held in memory,
    persisted by us, and loaded by a plain loop, which goes on as if nothing had been.
    """
    model, optimizer = fresh_reference()
    reference_loop(model, optimizer, range(3))
    dcp.save(plain_state(model, optimizer), checkpoint_id=tmp_path / "a/step-3", no_dist=True)
    plan = regular_plan(llama_units(SHAPE), micro_batches=4, devices_per_node=4, **degrees)
    checkpoint = Checkpoint(choose_checkpoint(tmp_path / "a"))
    for worker in plan.workers:
        wants = wants_for(plan, worker)
        checkpoint.read(wants)
        check_wants(wants, state_of(model, optimizer))

    (tmp_path / "shm").mkdir()
    cluster = Cluster(plan, tmp_path / "shm")
    cluster.save(Version(3, 1), state_of(model, optimizer))
    folder = write_checkpoint(tmp_path / "b", cluster.catalog(Version(3, 1)), {"step": 3})
    cluster.close()

    second, resumed = fresh_reference()
    reference_loop(second, resumed, range(1))  # so that the optimizer has its state
    loaded = plain_state(second, resumed)
    tree = loaded["model"] | {"optimizer": loaded["optimizer"], "step": 0}
    dcp.load(tree, checkpoint_id=folder, no_dist=True)
    for name, parameter in second.named().items():
        resumed.state[parameter] = tree["optimizer"]["state"][name]
    assert tree["step"] == 3
    reference_loop(model, optimizer, range(3, 6))
    reference_loop(second, resumed, range(3, 6))
    for name, parameter in second.named().items():
        assert torch.equal(parameter, model.named()[name]), name


def test_what_is_not_there_is_named(tmp_path):
    save_plain(random_state(PLANS[0]), tmp_path / "step-1", True)
    checkpoint = Checkpoint(choose_checkpoint(tmp_path))
    norm = torch.zeros(5)
    with pytest.raises(HoldfastError, match=r"no parameter of nothing: none of 'nothing', 'mode"):
        checkpoint.read([Want("nothing", "parameter", ((0, 5),), norm)])
    with pytest.raises(HoldfastError, match=r"does not lie in the saved shape \(5,\)"):
        checkpoint.read([Want("block.0.norm", "parameter", ((1, 6),), norm)])
    with pytest.raises(HoldfastError, match=r"float64 here, saved torch\.float32"):
        checkpoint.read([Want("block.0.norm", "parameter", ((0, 5),), norm.double())])


def test_a_damaged_directory_is_an_error(tmp_path):
    save_plain(random_state(PLANS[0]), tmp_path / "step-1", True)
    (tmp_path / "step-1" / "__0_0.distcp").write_bytes(b"nothing")
    checkpoint = Checkpoint(choose_checkpoint(tmp_path))
    with pytest.raises(HoldfastError, match="cannot be read"):
        checkpoint.read(wants_for(PLANS[0], "n0.g0"))
    (tmp_path / "step-1" / ".metadata").write_bytes(b"nothing")
    with pytest.raises(HoldfastError, match="the contents cannot be read"):
        Checkpoint(choose_checkpoint(tmp_path))


def test_scalars(tmp_path):
    plan = regular_plan((Unit("u", (TensorSpec("scale", ()),)),), micro_batches=1)
    state = random_state(plan)
    save_plain(state, tmp_path / "step-1", True)
    wants = wants_for(plan, "n0.g0")
    Checkpoint(choose_checkpoint(tmp_path)).read(wants)
    check_wants(wants, state)
