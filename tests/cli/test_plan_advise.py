"""`holdfast plan advise`, through the command line."""

import json

import pytest

from holdfast.cli.main import main
from holdfast.cli.plan_inputs import parse_slow
from holdfast.errors import HoldfastError
from holdfast.plan.check import check_plan
from holdfast.plan.text import parse_plan

BASE = ["plan", "advise", "--model", "llama-1b", "--devices", "16", "--profile", "h100"]


LARGE = ["plan", "advise", "--model", "llama-7b", "--profile", "h100"]


def told(capsys, *options: str, code: int = 0, base: list[str] = BASE) -> dict:
    assert main([*base, *options, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_the_chosen_plan_and_the_others_with_reasons(capsys):
    assert main([*BASE, "--dead", "n3", "--slow", "n1.g2=0.5"]) == 0
    out = capsys.readouterr().out
    assert "dead     n3.g0-3" in out
    assert "n1.g2 takes 2 times as long" in out
    assert "won: the highest score" in out
    assert "lost by" in out
    assert "assumed" in out


def test_the_json_has_everything(capsys):
    result = told(capsys, "--tensor", "2", "--stages", "2", "--dead", "n3.g1")
    assert result["chosen"]["verdict"].startswith("won")
    plan = parse_plan(result["plan"])
    check_plan(plan)
    assert "n3.g1" not in plan.workers
    assert {c["strategy"] for c in result["candidates"]} >= {"carry on", "shrink", "reroute"}
    assert result["healthy_share"] == 15 / 16


def test_healthy_devices_carry_on(capsys):
    assert told(capsys)["chosen"]["strategy"] == "carry on"


def test_lost_state_is_told(capsys):
    result = told(capsys, "--replicas", "1", "--dead", "n0.g0")
    assert "are dead" in result["lost"]
    assert result["chosen"]["strategy"] == "restart"


def test_spares_are_used(capsys):
    result = told(capsys, "--tensor", "1", "--stages", "2", "--dead", "n0.g0", "--spares", "1")
    assert "n4.g0" in parse_plan(result["plan"]).workers


def test_the_plan_can_be_kept(capsys, tmp_path):
    path = tmp_path / "next.toml"
    assert main([*BASE, "--dead", "n0", "--out", str(path)]) == 0
    kept = parse_plan(path.read_text())
    assert main(["plan", "advise", "--plan", str(path), "--dead", kept.workers[0], "--json"]) == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--dead", "n99"], "names no worker"),
        (["--profile", "abacus"], "neither a file nor known hardware"),
        (["--slow", "n0.g0"], "and its speed"),
        (["--devices", "0"], "at least 1"),
        (["--model", "llama-70b", "--devices", "2"], "no regular layout"),
    ],
)
def test_mistakes_are_told_in_one_line(capsys, options, words):
    assert main(["plan", "advise", *options]) == 1
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1


def test_more_time_finds_no_worse_plan(capsys):
    scores = []
    for seconds in ("0", "30"):
        assert main([*BASE, "--dead", "n3", "--seconds", seconds, "--json"]) == 0
        scores.append(json.loads(capsys.readouterr().out)["chosen"]["score"])
    assert scores[1] >= scores[0]


def test_a_speed_and_a_time_say_the_same():
    assert parse_slow(("n5.g2=0.5", "n1=3")) == {"n5.g2": 2.0, "n1": 3.0}
    with pytest.raises(HoldfastError):
        parse_slow(("n5.g2=0",))


def test_advise_and_show_mean_the_same_by_slow(capsys):
    assert main([*BASE, "--slow", "n1.g2=0.5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["slow"] == {"n1.g2": 2.0}
    times = []
    for who in ("n0.g1=0.5", "n0.g1=2", "n0.g1=1"):
        shape = ["--stages", "2", "--forward", "1", "--slow", who]
        assert main(["plan", "show", *shape, "--json"]) == 0
        times.append(json.loads(capsys.readouterr().out)["iteration_time"])
    half_as_fast, twice_as_long, healthy = times
    assert half_as_fast == twice_as_long > healthy


@pytest.mark.parametrize("devices", ["7", "9", "13", "23"])
def test_one_death_of_an_odd_number_loses_nothing_where_two_copies_are_possible(capsys, devices):
    base = [*LARGE, "--devices", devices, "--seconds", "0"]
    result = told(capsys, "--dead", "n0.g0", base=base)
    assert result["lost"] == ""
    assert result["chosen"]["strategy"] != "restart"
    assert "would keep one copy of everything" in result["warning"]
    assert main(base) == 0
    out = capsys.readouterr().out
    assert "beware" in out
    assert ("spare    n" in out) == (devices != "9")


def test_a_plan_with_one_copy_is_warned_of_and_kept_where_it_was_asked_for(capsys):
    result = told(capsys, "--replicas", "1", "--stages", "16")
    assert result["before"].count("r0 (") == 1
    assert "16 devices as" in result["warning"]
    assert "would keep two" in result["warning"]
    assert told(capsys, "--replicas", "2", "--stages", "8")["warning"] == ""


def test_one_copy_is_all_there_is(capsys):
    result = told(capsys, base=[*LARGE, "--devices", "2", "--seconds", "0"])
    assert result["warning"].startswith("one copy of everything")
