import tomllib

import msgspec
import pytest

from holdfast.plan.model_catalog import llama_shape
from holdfast.runtime.config.data_sections import DataSection
from holdfast.runtime.config.job_file import ALIASES, SECTIONS, JobConfig, format_job
from holdfast.runtime.config.job_sections import JobSection
from holdfast.runtime.config.model_sections import ModelSection
from holdfast.runtime.config.parallel_sections import ChangeSection, ParallelSection


def test_a_preset_with_other_sizes():
    section = ModelSection(preset="llama-small", num_layers=2, tied=True)
    expected = msgspec.structs.replace(llama_shape("llama-small"), num_layers=2, tied=True)
    assert section.shape() == expected
    assert ModelSection().shape() == llama_shape("llama-tiny")


def test_every_alias_means_a_key_and_hides_none():
    for section, aliases in ALIASES.items():
        keys = set(SECTIONS[section].__struct_fields__)
        assert set(aliases.values()) <= keys
        assert not set(aliases) & keys


CONFIGS = [
    JobConfig(job=JobSection(steps=3)),
    JobConfig(
        job=JobSection(steps=3, name="a.b-c", device="cuda", run_dir='odd "name"\\'),
        model=ModelSection(dim=128, dropout=0.1),
        data=DataSection(kind="tokens", path="x.bin", dtype="uint16", seed=4),
        parallel=ParallelSection(stages=2, split=(2, 4), recompute=True),
        changes=(
            ChangeSection(at_step=1, parallel=ParallelSection(plan="b.toml")),
            ChangeSection(at_step=2, parallel=ParallelSection(tensor=3)),
        ),
    ),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_what_is_written_is_toml_with_the_same_values(config):
    tables = tomllib.loads(format_job(config))
    changes = tables.pop("change", [])
    for name, section in SECTIONS.items():
        assert msgspec.convert(tables.get(name, {}), section) == getattr(config, name)
    assert [change["at_step"] for change in changes] == [c.at_step for c in config.changes]
