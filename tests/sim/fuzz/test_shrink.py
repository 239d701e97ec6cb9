import msgspec

from holdfast.sim.fuzz.run import draw_run, run_plan, run_seed
from holdfast.sim.fuzz.shrink import MIN_WAR_MS, shrink
from support.mutants import plant


def test_a_failure_is_told_with_as_few_faults_as_show_it(monkeypatch):
    """What breaks without any fault is shown without any."""
    plant("journal_first", monkeypatch)
    seed = next(seed for seed in range(20) if draw_run(seed).faults)
    broken = run_seed(seed).broken
    found = shrink(broken)
    assert found.broken.promise == broken.promise
    assert run_plan(seed, found.plan).broken == found.broken
    assert found.faults == ()
    assert found.plan.war_ms == MIN_WAR_MS


def test_a_fault_that_is_left_out_changes_nothing_about_the_others():
    plan = draw_run(3)
    longer = msgspec.structs.replace(plan, faults=plan.faults * 2)
    again = msgspec.structs.replace(longer, faults=longer.faults[: len(plan.faults)])
    assert run_plan(3, again) == run_plan(3, plan)


def test_faults_are_told_in_words():
    words = [str(fault) for seed in range(20) for fault in draw_run(seed).faults]
    assert any(word.endswith(" ms") for word in words)
    assert any(" at applied " in word for word in words)
