"""`holdfast plan show|check|diff`, through the command line."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.plan.text import parse_plan

BASE = ["--model", "llama-small", "--tokens", "128"]
COSTS = ["--forward", "1", "--backward", "2"]


def show(*options: str) -> list[str]:
    return ["plan", "show", *BASE, *COSTS, *options]


def numbers(capsys, *options: str) -> dict:
    assert main([*show(*options), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def error_of(capsys, argv: list[str], code: int = 1) -> str:
    assert main(argv) == code
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    return err


def window_table(p: int, m: int, s: int, f: float, b: float) -> list[list[float]]:
    """Bubbles of stage s under 1F1B: head, middle, cool-down gaps, tail."""
    end = (m + p - 1) * (f + b)
    last = end - s * b
    cool_down = [
        [last - k * (f + b) - b - f, last - k * (f + b) - b] for k in reversed(range(p - 1 - s))
    ]
    windows = [[0, s * f], [p * f, p * f + (p - 1 - s) * b], *cool_down, [last, end]]
    return [window for window in windows if window[1] > window[0]]


@pytest.mark.parametrize(("p", "m"), [(1, 1), (1, 5), (2, 2), (3, 7), (4, 8), (8, 8), (8, 24)])
def test_regular_1f1b_has_its_closed_form(p, m, capsys):
    result = numbers(capsys, "--stages", str(p), "--micro-batches", str(m))
    assert result["iteration_time"] == (m + p - 1) * 3
    assert result["bubble_fraction"] == pytest.approx((p - 1) / (m + p - 1))
    for s, worker in enumerate(result["workers"]):
        assert worker["role"] == f"r0.s{s}"
        assert worker["gaps"] == window_table(p, m, s, 1, 2)
        assert worker["busy"] == 3 * m
        assert worker["idle"] == 3 * (p - 1)
        assert worker["peak_activations"] == min(m, p - s)


def test_the_documented_fields_are_there(capsys):
    result = numbers(capsys, "--replicas", "2", "--stages", "4", "--tensor", "2")
    assert {"iteration_time", "bubble_fraction", "workers"} <= result.keys()
    fields = {"name", "role", "busy", "idle", "gaps", "peak_activations", "memory_bytes"}
    assert all(fields <= worker.keys() for worker in result["workers"])
    assert result["micro_batches_per_replica"] == {"r0": 8, "r1": 8}


def test_the_picture_in_the_terminal(capsys):
    options = ["--replicas", "2", "--stages", "4", "--tensor", "2", "--micro-batches", "16"]
    assert main(show(*options, "--schedule", "1f1b")) == 0
    out = capsys.readouterr().out
    assert out.startswith("2 replicas x 4 stages x 2 tensor, 1f1b\n")
    assert "r0.s3  ·········F0-B0====F1-" in out
    assert "iteration time     33" in out
    assert "16 micro-batches a step, 8 per replica" in out
    assert "forward 1, backward 2 per worker and micro-batch" in out


def test_the_terminals_width_is_used(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert main(show("--stages", "4")) == 0
    chart = capsys.readouterr().out.split("iteration time")[0]
    assert max(map(len, chart.splitlines())) <= 60


def test_names_of_the_field(capsys):
    ours = numbers(capsys, "--replicas", "2", "--stages", "2", "--tensor", "2", "--shard", "2")
    theirs = numbers(capsys, "--dp_replicate", "2", "--pp", "2", "--tp", "2", "--dp-shard", "2")
    assert ours == theirs
    assert len(ours["workers"]) == 16


def test_costs_are_called_assumed_where_they_are(capsys):
    assert main(["plan", "show", *BASE, "--stages", "2"]) == 0
    assert "assumed, from the model's operation counts" in capsys.readouterr().out


def test_a_tensor_group_shares_assumed_work(capsys):
    times = []
    for tensor in ("1", "2"):
        assert main(["plan", "show", *BASE, "--tensor", tensor, "--json"]) == 0
        times.append(json.loads(capsys.readouterr().out)["iteration_time"])
    assert times[0] == pytest.approx(2 * times[1])


def test_only_forward_given_means_the_usual_backward(capsys):
    assert main(["plan", "show", *BASE, "--forward", "1", "--micro-batches", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["iteration_time"] == 6


def test_the_weight_part(capsys):
    options = ["--stages", "2", "--micro-batches", "4", "--schedule", "zero-bubble"]
    short = numbers(capsys, *options, "--weight", "0.5")["iteration_time"]
    assert short > numbers(capsys, *options)["iteration_time"]


@pytest.mark.parametrize("who", ["r0.s1", "r1.s1", "n0.g1", "n0"])
def test_a_slow_worker_makes_the_step_longer(who, capsys):
    options = ["--replicas", "2", "--stages", "4", "--micro-batches", "16"]
    assert numbers(capsys, *options, "--slow", f"{who}=2.0")["iteration_time"] > 33


def test_a_slow_worker_is_named_in_the_picture(capsys):
    assert main(show("--stages", "4", "--slow", "r0.s1=2", "--critical")) == 0
    assert "r0.s1 2x slower" in capsys.readouterr().out


def test_a_route_through_another_replica(capsys):
    options = ["--replicas", "2", "--stages", "4", "--micro-batches", "8"]
    result = numbers(capsys, *options, "--route", "0-1=r0.s0 r1.s1 r0.s2 r0.s3", "--route", "7=r0")
    busy = {worker["role"]: worker["busy"] for worker in result["workers"]}
    assert busy["r0.s1"] == 3 * 3
    assert busy["r1.s1"] == 3 * 5
    assert busy["r1.s0"] == 3 * 3
    assert result["micro_batches_per_replica"] == {"r0": 5, "r1": 3}


def test_a_lost_worker(capsys):
    options = ["--replicas", "3", "--stages", "4", "--micro-batches", "24", "--lost", "r0.s1"]
    result = numbers(capsys, *options)
    assert len(result["workers"]) == 11
    assert main(show(*options)) == 0
    out = capsys.readouterr().out
    assert "r0.s1 lost, its micro-batches rerouted" in out
    assert "small letters: of another replica" in out


def test_links_cost_time(capsys):
    options = ["--stages", "2", "--micro-batches", "2"]
    free = numbers(capsys, *options)["iteration_time"]
    assert numbers(capsys, *options, "--latency", "0.5")["iteration_time"] == free + 1
    assert numbers(capsys, *options, "--bandwidth", "64KiB")["iteration_time"] == free + 2


def test_recomputation_costs_time_and_saves_memory(capsys):
    options = ["--stages", "4", "--micro-batches", "8"]
    kept, again = numbers(capsys, *options), numbers(capsys, *options, "--recompute")
    assert again["iteration_time"] == (8 + 4 - 1) * 4
    assert again["workers"][0]["memory_bytes"] < kept["workers"][0]["memory_bytes"]


def test_a_split_by_hand(capsys):
    assert main(["plan", "show", *BASE, "--stages", "3", "--split", "1,8,1", "--json"]) == 0
    busy = [worker["busy"] for worker in json.loads(capsys.readouterr().out)["workers"]]
    assert busy[0] < busy[2] < busy[1]


def test_files_by_their_ending(tmp_path, capsys):
    paths = [tmp_path / f"plan.{ending}" for ending in ("svg", "html", "json", "toml")]
    outs = [option for path in paths for option in ("--out", str(path))]
    assert main(show("--stages", "2", *outs)) == 0
    assert f"wrote {paths[0]}" in capsys.readouterr().out
    ET.parse(paths[0])
    assert paths[1].read_text().startswith("<!doctype html>")
    assert json.loads(paths[2].read_text())["traceEvents"]
    assert len(parse_plan(paths[3].read_text()).stages) == 2


def test_a_plan_file_shows_the_same(tmp_path, capsys):
    path = tmp_path / "plan.toml"
    options = ["--stages", "4", "--replicas", "2", "--tensor", "2"]
    first = numbers(capsys, *options, "--out", str(path))
    assert main(["plan", "show", "--plan", str(path), *COSTS, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert main(["plan", "show", "--plan", str(path)]) == 0
    assert "assumed, as the units of" in capsys.readouterr().out


PROFILE = """{
  "source": "measured",
  "worker": {"forward": 2, "backward_input": 1, "backward_weight": 1},
  "slow": {"r0.s1": 2},
  "workload": [1, 3]
}"""


def test_a_profile_file(tmp_path, capsys):
    path = tmp_path / "profile.json"
    path.write_text(PROFILE)
    options = ["--stages", "2", "--micro-batches", "2", "--profile", str(path), "--json"]
    assert main(["plan", "show", *BASE, *options]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["costs"].startswith("measured, from ")
    assert [worker["busy"] for worker in result["workers"]] == [4 * 4, 2 * 4 * 4]
    path.write_text("[]")
    assert str(path) in error_of(capsys, ["plan", "show", *BASE, *options])


def test_large_plans_are_summarised(capsys):
    assert main(show("--replicas", "64", "--stages", "4", "--micro-batches", "512")) == 0
    out = capsys.readouterr().out
    assert "r0-63.s0 x 64" in out
    assert len(out.splitlines()) < 30


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--stages", "99"], ["10 units", "99 stages"]),
        (["--stages", "0"], ["stages = 0"]),
        (["--model", "gpt"], ["'gpt'", "llama-7b"]),
        (["--schedule", "best"], ["'best'", "1f1b"]),
        (["--schedule", "explicit"], ["plan file"]),
        (["--tensor", "16"], ["16", "8"]),
        (["--split", "3;4"], ["'3;4'"]),
        (["--slow", "r0.s1"], ["'r0.s1'", "r0.s1=0.5"]),
        (["--slow", "r7.s0=2"], ["r7.s0"]),
        (["--route", "3"], ["'3'"]),
        (["--route", "1=r9"], ["r9", "r0"]),
        (["--route", "99=r0"], ["99"]),
        (["--route", "0=r0.s0 r0.s0"], ["r0.s0"]),
        (["--lost", "r0.s0"], ["r0.s0 is lost"]),
        (["--lost", "r5"], ["r5"]),
        (["--device-memory", "1MiB"], ["1048576 B", "needs"]),
        (["--device-memory", "lots"], ["'lots'", "80GiB"]),
        (["--bandwidth", "-1"], ["'-1'"]),
        (["--latency", "-1"], ["-1"]),
        (["--weight", "3"], ["3", "2"]),
        (["--out", "plan.png"], ["plan.png", ".svg"]),
        (["--rows", "0"], ["0"]),
        (["--tokens", "0"], ["0"]),
        (["--devices-per-node", "0"], ["0"]),
        (["--extra-in-flight", "-1"], ["-1"]),
        (["--plan", "no-such.toml"], ["--model", "no-such.toml"]),
        (["--profile", "no-such.json"], ["no-such.json", "No such file"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_mistakes_are_told_in_one_line(options, words, capsys):
    base = [] if "--model" in options else BASE
    if "--tokens" in options:
        base = BASE[:2]
    line = error_of(capsys, ["plan", "show", *base, *COSTS, *options])
    for word in words:
        assert word in line


def test_backward_alone_is_refused(capsys):
    assert "needs --forward" in error_of(capsys, ["plan", "show", "--backward", "2"])


# Files.


@pytest.fixture
def plan_file(tmp_path, capsys):
    def write(name: str, *options: str) -> str:
        path = tmp_path / name
        assert main(show(*options, "--out", str(path))) == 0
        capsys.readouterr()
        return str(path)

    return write


def test_check_a_good_plan(plan_file, capsys):
    path = plan_file("a.toml", "--replicas", "2", "--stages", "4")
    assert main(["plan", "check", path]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"ok: {path}: 8 workers, 2 replicas x 4 stages, 16 micro-batches a step")
    assert out.count("\n") == 1
    assert main(["plan", "check", path, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["ok"] is True
    assert result["workers"] == 8


def test_check_a_bad_plan(plan_file, capsys):
    path = Path(plan_file("a.toml", "--replicas", "2", "--stages", "4"))
    path.write_text(path.read_text().replace('"0-15" = "r0-1"', '"0-14" = "r0"'))
    line = error_of(capsys, ["plan", "check", str(path)])
    assert str(path) in line
    assert "micro-batch 15" in line
    assert main(["plan", "check", str(path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"not a plan", b""])
def test_check_what_is_no_plan(content, tmp_path, capsys):
    path = tmp_path / "x.toml"
    path.write_bytes(content)
    assert str(path) in error_of(capsys, ["plan", "check", str(path)])


def test_diff_says_what_differs_and_what_moves(plan_file, capsys):
    options = ["--replicas", "2", "--stages", "4"]
    old = plan_file("a.toml", *options, "--lost", "r0.s1")
    new = plan_file("b.toml", *options)
    assert main(["plan", "diff", old, new]) == 0
    out = capsys.readouterr().out
    assert "r0.s1 (units 2-4 on n0.g1) is new" in out
    assert "micro-batches 0-7 take r0 instead of r0.s0 r1.s1 r0.s2 r0.s3" in out
    assert "n0.g1 joins" in out
    assert "n0.g1 (r0.s1) gets" in out
    assert "communication groups:" in out
    assert main(["plan", "diff", old, new, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["transition"]["num_bytes"] > 0
    assert len(result["changes"]) == 2


def test_diff_of_equal_plans(plan_file, capsys):
    path = plan_file("a.toml", "--stages", "2")
    assert main(["plan", "diff", path, path]) == 0
    assert capsys.readouterr().out.startswith("the plans are equal\nno state has to move\n")


def test_diff_refuses_to_lose_a_last_copy(plan_file, capsys):
    old = plan_file("a.toml", "--stages", "2", "--devices-per-node", "1")
    text = Path(old).read_text()
    new = Path(old).with_name("b.toml")
    assert "n0-1.g0" in text
    new.write_text(text.replace("n0-1.g0", "n2-3.g0"))
    line = error_of(capsys, ["plan", "diff", old, str(new), "--dead", "n1"])
    assert "the last copy is gone" in line
    assert main(["plan", "diff", old, str(new), "--dead", "n1", "--json"]) == 1
    assert "the last copy is gone" in json.loads(capsys.readouterr().out)["error"]


def test_diff_names_the_file_that_is_incomplete(plan_file, capsys):
    path = Path(plan_file("a.toml", "--stages", "2"))
    broken = path.with_name("b.toml")
    broken.write_text(path.read_text().replace('"5-9"', '"6-9"'))
    assert f"{broken}: " in error_of(capsys, ["plan", "diff", str(path), str(broken)])


@pytest.mark.process
def test_as_a_command():
    command = [sys.executable, "-m", "holdfast.cli.main", *show("--stages", "2"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["iteration_time"] == 15


def test_actions_are_one_line_per_worker(capsys):
    assert main([*show("--stages", "2", "--tensor", "2", "--micro-batches", "2"), "--actions"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["n0.g0", "n0.g1", "n0.g2", "n0.g3"]
    assert lines[0].split()[1:4] == ["F0", "SF0>r0.s1", "F1"]
    assert lines[3].endswith("AGREE STEP")
