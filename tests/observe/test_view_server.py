import msgspec
import pytest

from holdfast.observe.run.load import RunFollower
from holdfast.observe.view_data import RunFeed
from holdfast.observe.view_server import make_app
from support.asgi import ask_app
from support.made_runs import MadeRun, disturbed_run


@pytest.fixture
def app(tmp_path):
    follower = RunFollower(disturbed_run().end().write(tmp_path / "run"))
    return make_app(RunFeed(follower), tick_s=0.001)


def test_the_page_may_talk_to_its_server_only(app):
    reply = ask_app(app, "/")
    assert reply.status == 200
    assert "connect-src 'self'" in reply.headers["content-security-policy"]
    assert b"api/events" in reply.body


def test_numbers(app):
    run = msgspec.json.decode(ask_app(app, "/api/run").body)
    assert run["run"]["next_step"] == 60
    points = msgspec.json.decode(ask_app(app, "/api/points", "start_s=0.5&end_s=1").body)
    assert 0 < len(points["step"]) < 12
    assert ask_app(app, "/api/points", "start_s=soon").status == 400
    assert b"holdfast_steps_total 64" in ask_app(app, "/metrics").body


def test_events_of_a_finished_run_end(app):
    body = ask_app(app, "/api/events").body
    assert body.startswith(b"event: all\ndata: {")
    assert body.endswith(b"event: end\ndata: {}\n\n")


def test_pictures_of_plans(app):
    assert ask_app(app, "/plan/1.svg").body.startswith(b"<svg")
    assert ask_app(app, "/plan/77.svg").status == 404


def test_health(app, tmp_path):
    assert ask_app(app, "/healthz").status == 200
    assert ask_app(app, "/readyz").status == 503
    run = MadeRun()
    live = RunFeed(RunFollower(run.start().steps(9).write(tmp_path / "live")))
    assert msgspec.json.decode(ask_app(make_app(live), "/readyz").body) == {"state": "silent"}


def test_nothing_can_be_changed(app):
    assert ask_app(app, "/inject").status == 404
