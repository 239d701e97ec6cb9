import msgspec
import pytest

from holdfast.errors import HoldfastError
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.job_sections import JobSection
from holdfast.runtime.config.model_sections import ModelSection
from holdfast.runtime.config.recovery_sections import SnapshotSection
from holdfast.runtime.launch.check_settings import check_settings

PLAIN = JobConfig(job=JobSection(steps=1))


def with_job(**fields) -> JobConfig:
    return msgspec.structs.replace(PLAIN, job=JobSection(steps=1, **fields))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "10.1.2.3"])
def test_an_address_that_workers_can_connect_to(host):
    check_settings(with_job(host=host))


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("0.0.0.0", "no address that workers could connect to"),
        ("224.0.0.1", "no address that workers could connect to"),
        ("::1", "an IPv4 address is needed"),
        ("", "no address or name"),
        ("a b", "no address or name"),
    ],
)
def test_one_that_they_cannot(host, words):
    with pytest.raises(HoldfastError, match=words) as caught:
        check_settings(with_job(host=host))
    assert repr(host) in str(caught.value)


def test_files_that_are_no_certificate(tmp_path):
    for name in ("cert", "key"):
        (tmp_path / name).write_text("no certificate\n")
    files = {f"tls_{name}": str(tmp_path / name) for name in ("cert", "key")}
    with pytest.raises(HoldfastError, match="are no certificate and its key"):
        check_settings(with_job(**files))


def test_a_file_in_place_of_the_run_directory(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(HoldfastError, match="is no directory"):
        check_settings(with_job(run_dir=str(tmp_path / "run")))


def test_a_checkpoint_of_no_run():
    config = msgspec.structs.replace(PLAIN, snapshot=SnapshotSection(load_step=3))
    with pytest.raises(HoldfastError, match=r"load_step = 3 needs job\.resume"):
        check_settings(config)


def test_only_our_own_models_are_compiled():
    job = JobSection(steps=1, compile=True)
    check_settings(JobConfig(job=job))
    with pytest.raises(HoldfastError, match=r"job.compile = true is for our Llamas, .* 'a/folder'"):
        check_settings(JobConfig(job=job, model=ModelSection(hf="a/folder")))
