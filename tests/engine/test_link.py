"""Everything that is used as a link has what a trainer asks of one."""

import inspect

import pytest

from holdfast.engine.link import CoordinatorLink
from holdfast.engine.scripted import ScriptedLink
from holdfast.runtime.worker.agent_link import WorkerLink
from support.threaded_job import ThreadLink

ASKED = ["on_freeze", "wait", "tell", "finished", "step_done", "plan_changed", "recovered"]


@pytest.mark.parametrize("kind", [ScriptedLink, WorkerLink, ThreadLink])
@pytest.mark.parametrize("name", ASKED)
def test_a_link_takes_what_it_is_given(kind, name):
    asked = list(inspect.signature(getattr(CoordinatorLink, name)).parameters)
    assert list(inspect.signature(getattr(kind, name)).parameters) == asked
