from holdfast.control.view import CoordinatorView
from support.control_jobs import Job, small_plan


def test_before_the_first_order():
    view = Job().coordinator.view
    assert isinstance(view, CoordinatorView)
    assert (view.term, view.last, view.epoch, view.change) == (0, None, 0, 0)
    assert view.plan == view.wanted == small_plan()
    assert (view.workers, view.nodes) == ({}, [])


def test_it_is_always_up_to_date():
    job = Job()
    view = job.coordinator.view
    job.begin()
    assert (view.term, view.epoch, view.next_step) == (1, 1, 0)
    assert list(view.workers) == ["n0.g0", "n1.g0"]
    assert view.workers["n0.g0"].epoch == 1
    assert (view.nodes, view.is_stopping) == (["n0", "n1"], False)
    assert view.plans[1] == view.plan


def test_at_the_end_joiners_have_nothing_to_say():
    job = Job(start_ms=0)
    job.connect("n0")
    job.connect("n1")
    view = job.coordinator.view
    assert list(view.workers) == ["n0.g0", "n1.g0"]
    assert view.finishing == ["n0.g0"]
