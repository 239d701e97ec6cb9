import msgspec
import pytest

from holdfast.errors import HoldfastError
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


class FakeControl:
    kinds = ("SIGKILL", "SIGSTOP")

    def __init__(self):
        self.done = []

    def allows(self, secret):
        return secret == "open sesame"

    def inject(self, kind, target):
        if kind not in self.kinds:
            raise HoldfastError(f"{kind!r} is no fault")
        self.done.append((kind, target))
        return f"{kind} for {target}"

    def stop(self):
        self.done.append("stop")
        return "stopping"


def test_nothing_can_be_changed_unless_it_is_allowed(app):
    for path in ("/api/inject", "/api/stop"):
        reply = ask_app(app, path, post=b"{}", headers={"authorization": "Bearer open sesame"})
        assert reply.status == 403
        assert b"--control" in reply.body
        assert ask_app(app, path).status == 405
    assert msgspec.json.decode(ask_app(app, "/api/run").body)["kinds"] == []


def test_control_needs_the_secret(tmp_path):
    follower = RunFollower(disturbed_run().end().write(tmp_path / "run"))
    control = FakeControl()
    app = make_app(RunFeed(follower), control=control)
    wanted = b'{"kind":"SIGKILL","target":"n0.g1"}'
    for header in ({}, {"authorization": "Bearer guess"}, {"authorization": "open sesame"}):
        assert ask_app(app, "/api/inject", post=wanted, headers=header).status == 401
        assert ask_app(app, "/api/stop", post=b"{}", headers=header).status == 401
    assert control.done == []
    right = {"authorization": "Bearer open sesame"}
    assert b"SIGKILL for n0.g1" in ask_app(app, "/api/inject", post=wanted, headers=right).body
    assert ask_app(app, "/api/stop", post=b"{}", headers=right).status == 200
    assert control.done == [("SIGKILL", "n0.g1"), "stop"]
    for bad in (b'{"kind":"FLOOD"}', b"not json", b'{"kind":1}'):
        assert ask_app(app, "/api/inject", post=bad, headers=right).status == 400


def test_other_names_of_this_machine_are_refused(tmp_path):
    follower = RunFollower(disturbed_run().end().write(tmp_path / "run"))
    app = make_app(RunFeed(follower), hosts=("127.0.0.1", "localhost"))
    assert ask_app(app, "/healthz", headers={"host": "localhost:8642"}).status == 200
    assert ask_app(app, "/healthz", headers={"host": "rebound.example:8642"}).status == 400


def test_a_step_that_was_not_measured(app):
    assert ask_app(app, "/api/step").body == b"null"
