import msgspec
import pytest

from holdfast.errors import HoldfastError
from holdfast.plan.profile import Link, Profile, UnitCost, format_profile
from holdfast.runtime.config.data_sections import DataSection
from holdfast.runtime.config.emulate_sections import EmulateSection
from holdfast.runtime.config.emulation import emulation_of
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.job_sections import JobSection


def config(**given):
    return JobConfig(
        job=JobSection(steps=4),
        data=DataSection(seq_len=16, rows=2),
        emulate=EmulateSection(**given),
    )


def test_nothing_is_emulated_by_default():
    assert emulation_of(config()) is None


def test_times_in_the_ratios_of_the_model():
    emulation = emulation_of(config(unit_ms=20.0, latency_ms=1.0, bandwidth_mb_per_s=2.0))
    block = emulation.profile.unit["block.0"]
    assert msgspec.structs.astuple(block) == pytest.approx((0.02, 0.02, 0.02))
    assert emulation.profile.unit["embed"] == UnitCost(0.0, 0.0, 0.0)
    assert emulation.profile.unit["head"].forward < 0.02
    assert emulation.profile.between_nodes == emulation.profile.reduce == Link(0.001, 2e6)
    assert (emulation.rows, emulation.row_tokens) == (2, 16)


def test_a_profile_of_another_run(tmp_path):
    given = Profile(unit={"block.0": UnitCost(1.0, 2.0, 3.0)}, within_node=Link(0.5, 7.0))
    path = tmp_path / "profile.json"
    path.write_text(format_profile(given))
    assert emulation_of(config(profile=str(path))).profile == given
    faster = emulation_of(config(profile=str(path), latency_ms=1.0)).profile
    assert faster.within_node == Link(0.001, 7.0)


def test_profiles_that_do_not_serve(tmp_path):
    path = tmp_path / "profile.json"
    with pytest.raises(HoldfastError, match="No such file"):
        emulation_of(config(profile=str(path)))
    path.write_text("{}")
    with pytest.raises(HoldfastError, match="has no times of units"):
        emulation_of(config(profile=str(path)))
    path.write_text("[1]")
    with pytest.raises(HoldfastError, match="not a profile"):
        emulation_of(config(profile=str(path)))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(HoldfastError, match="not a text file"):
        emulation_of(config(profile=str(path)))
    with pytest.raises(HoldfastError, match="contradict each other"):
        emulation_of(config(profile=str(path), unit_ms=1.0))
