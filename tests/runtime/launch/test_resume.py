"""What does not fit is refused with both values, before anything starts."""

import msgspec
import pytest
import torch.distributed.checkpoint as dcp

from holdfast.errors import HoldfastError
from holdfast.models.llama import initial_state
from holdfast.runtime.config.job_file import JobConfig, JobSection, ModelSection, format_job
from holdfast.runtime.launch.prepare import prepare_job
from holdfast.runtime.launch.resume import check_same_model, earlier_job

EARLIER = JobConfig(job=JobSection(steps=4), model=ModelSection(dropout=0.1))


def resumed(run_dir, dtype="float32", **model) -> JobConfig:
    job = JobSection(steps=9, resume=str(run_dir), dtype=dtype)
    return JobConfig(job=job, model=ModelSection(**model))


@pytest.fixture
def run_dir(tmp_path):
    (tmp_path / "job.toml").write_text(format_job(EARLIER))
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"num_layers": 6}, "model.num_layers = 4, this job has model.num_layers = 6"),
        ({"vocab": 512}, "model.vocab = 256, this job has model.vocab = 512"),
        ({"tied": True}, "model.tied = False, this job has model.tied = True"),
        ({"preset": "llama-small"}, "model.dim = 64, this job has model.dim = 256"),
        ({"dtype": "float64"}, "job.dtype = 'float32', this job has job.dtype = 'float64'"),
    ],
)
def test_another_model_is_refused_by_the_job_file_of_the_run(run_dir, changed, words):
    with pytest.raises(HoldfastError) as caught:
        prepare_job(resumed(run_dir, **changed))
    assert words in str(caught.value)


def test_what_does_not_change_the_tensors_may_differ(run_dir):
    check_same_model(resumed(run_dir, hidden_parts=4, dropout=0.0), earlier_job(str(run_dir)))


def test_a_job_file_that_cannot_be_read_is_none(tmp_path):
    assert earlier_job(str(tmp_path)) is None
    (tmp_path / "job.toml").write_text("[job]\nsteps = 4\nfrom_the_future = 1\n")
    assert earlier_job(str(tmp_path)) is None


@pytest.fixture
def foreign(tmp_path):
    """A checkpoint that plain DCP wrote."""
    shape = msgspec.structs.replace(ModelSection().shape())
    state = initial_state(shape, seed=0)
    folder = tmp_path / "checkpoints" / "step-3"
    folder.mkdir(parents=True)
    dcp.save(state, checkpoint_id=folder, no_dist=True)
    return tmp_path


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"vocab": 512}, "embed.weight is float32 [256, 64] there, and float32 [512, 64] in this"),
        ({"dtype": "float64"}, "embed.weight is float32 [256, 64] there, and float64 [256, 64]"),
        ({"num_layers": 6}, "has no parameter of block.4.attn_norm"),
    ],
)
def test_another_model_is_refused_by_the_tensors_of_a_foreign_checkpoint(foreign, changed, words):
    with pytest.raises(HoldfastError) as caught:
        prepare_job(resumed(foreign, **changed))
    assert words in str(caught.value)
    assert prepare_job(resumed(foreign)).first_step == 3
