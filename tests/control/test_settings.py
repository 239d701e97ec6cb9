from holdfast.control.settings import ControlSettings
from support.control_jobs import small_plan


def test_the_defaults_are_those_of_a_job():
    settings = ControlSettings(plan=small_plan())
    assert settings.settle_ms < settings.answer_ms <= settings.start_ms
