import pytest

from holdfast.errors import HoldfastError
from holdfast.runtime.config.view_sections import LogSection, ViewSection, as_names


def test_names_are_a_list_or_a_text_with_commas():
    assert as_names("csv, a.b:C,") == as_names(("csv", "a.b:C")) == ("csv", "a.b:C")
    assert LogSection(to="csv,tensorboard").loggers == ("csv", "tensorboard")
    assert LogSection(callbacks=" a:b ").callback_paths == ("a:b",)
    assert LogSection().loggers == ()


def test_a_logger_is_ours_or_an_import_path():
    assert LogSection(to="my_project.log:MyLog").loggers == ("my_project.log:MyLog",)
    with pytest.raises(HoldfastError, match=r"to = 'tensorbord': one of tensorboard, wandb"):
        LogSection(to="csv,tensorbord")


def test_traces_go_to_an_address():
    assert ViewSection(otlp="http://127.0.0.1:4318/v1/traces").otlp
    with pytest.raises(HoldfastError, match="otlp = '127"):
        ViewSection(otlp="127.0.0.1:4318")
