"""The mix of causes is the published one."""

from holdfast.sim.cluster.events import LLAMA3


def test_the_mix_has_all_interruptions():
    assert sum(cause.count for cause in LLAMA3) == 419
    assert len({cause.name for cause in LLAMA3}) == len(LLAMA3) == 18


def test_most_causes_are_hardware():
    repaired = sum(cause.count for cause in LLAMA3 if cause.repair)
    assert 0.75 < repaired / 419 < 0.80


def test_scopes_and_signs_are_known():
    assert {cause.scope for cause in LLAMA3} == {"device", "node"}
    assert {cause.sign for cause in LLAMA3} == {"exit", "hang"}
