from holdfast.control.rules import Rules
from holdfast.control.settings import Settings
from support.control_jobs import small_plan


def test_the_defaults_are_those_of_a_job():
    settings = Settings(plan=small_plan())
    assert settings.rules == Rules()
    assert settings.settle_ms < settings.answer_ms <= settings.start_ms
