"""Training models of transformers: equal to a plain loop over the model itself, under every plan,
with a worker killed in the middle; and back into a directory of theirs.

`make chaos` has the whole table.
"""

import pytest
import torch
from transformers import AutoModelForCausalLM

from holdfast.cli.main import main
from holdfast.errors import HoldfastError
from holdfast.models.hf import hf_model
from holdfast.runtime.launch.fork_server import ForkServer
from holdfast.runtime.launch.launcher import run_job
from holdfast.runtime.launch.prepare import prepare_job
from holdfast.runtime.record.final_state import read_final
from support.hf_jobs import SEED, job_config, plain_training, worst_gradient
from support.hf_models import EXPERTS, MODELS, VOCAB, save_tiny

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]

STEPS = 6
TOLERANCE = 1e-9


@pytest.fixture(scope="module")
def fork_server():
    with ForkServer(preload=["transformers.models.auto.modeling_auto"]) as server:
        server.wait_until_warm()
        yield server


def degrees_of(folder) -> list[int]:
    """Tensor degrees that the model can be cut to."""
    found = []
    for degree in (2, 3):
        try:
            hf_model(folder, SEED).check_tensor(degree)
            found.append(degree)
        except HoldfastError:
            pass
    return found


def check_architecture(kind, tmp_path, fork_server) -> str:
    """Everything that is promised of an architecture; a line of the table."""
    folder, run_dir, out = (tmp_path / name for name in ("model", "run", "out"))
    model = save_tiny(kind, folder)
    (folder / "tokenizer.json").write_text("{}")
    tensor = degrees_of(folder)
    errors = [worst_gradient(model, folder, degree) for degree in (1, *tensor)]
    changes = [{"at_step": 2, "replicas": 1, "stages": 2}]
    changes += [{"at_step": 3, "stages": 1, "shard": 2}]
    changes += [{"at_step": 4, "shard": 1, "tensor": degree} for degree in tensor[:1]]
    changes += [{"at_step": 5, "tensor": degree} for degree in tensor[1:]]
    config = job_config(
        folder,
        run_dir,
        STEPS,
        parallel={"replicas": 2, "devices_per_node": 1},
        change=changes,
        faults=[{"kind": "SIGKILL", "target": "n1.g0", "at_step": 1}],
    )
    result = run_job(prepare_job(config), fork_server=fork_server)
    losses, parameters = plain_training(model, STEPS)
    worst = max(
        abs(step.loss - loss) / loss for step, loss in zip(result.steps, losses, strict=True)
    )
    final = read_final(run_dir)
    assert final.keys() == parameters.keys()
    apart = max(
        float((final[name] - value).norm() / value.norm()) for name, value in parameters.items()
    )
    assert main(["export", str(run_dir), "--hf", str(out)]) == 0
    assert (out / "tokenizer.json").is_file()
    loaded = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float64)
    tokens = torch.arange(3, 12).remainder(VOCAB).unsqueeze(0)
    with torch.no_grad():
        theirs, ours = (one.eval()(input_ids=tokens).logits for one in (loaded, model))
    logits = float((theirs - ours).norm() / ours.norm())
    assert max(max(pair) for pair in errors) < TOLERANCE, errors
    assert max(worst, apart, logits) < TOLERANCE, (worst, apart, logits)
    cuts = ", ".join(str(degree) for degree in (1, *tensor))
    return (
        f"{kind:12} tensor {cuts:8} loss {max(e[0] for e in errors):.0e} "
        f"gradients {max(e[1] for e in errors):.0e} training {apart:.0e} logits {logits:.0e}"
    )


@pytest.mark.chaos
@pytest.mark.parametrize("kind", MODELS)
def test_the_whole_table(kind, tmp_path, fork_server, capsys):
    line = check_architecture(kind, tmp_path, fork_server)
    with capsys.disabled():
        print(f"{list(MODELS).index(kind) + 1:2}/{len(MODELS)} {line}", flush=True)


def test_the_table_is_long():
    assert len(MODELS) >= 20
    assert len(EXPERTS) >= 2
