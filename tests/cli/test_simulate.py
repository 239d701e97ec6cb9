"""`holdfast simulate`, through the command line."""

import json

import pytest

from holdfast.cli.main import main
from holdfast.cli.simulate_run import LLAMA3_DEVICE_MS, parse_span
from holdfast.errors import HoldfastError

SMALL = ["simulate", "--devices", "64", "--model", "llama-7b", "--mtbf", "30m", "--hours", "6"]
PEERS = ["--policy", "checkpoint,ft-hsdp,oobleck"]


def numbers(capsys, *options: str) -> dict:
    assert main([*options, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def error_of(capsys, *options: str) -> str:
    assert main(["simulate", *options]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_the_table_ranks_policies(capsys):
    assert main([*SMALL, *PEERS]) == 0
    out = capsys.readouterr().out
    places = [out.index(name) for name in ("Oobleck-like", "FT-HSDP-like", "checkpoint restart")]
    assert places == sorted(places)
    assert "what is lost to what" in out
    assert "ELASTIC_SLICE_DOWN" in out


def test_numbers_add_up(capsys):
    result = numbers(capsys, *SMALL, *PEERS)
    assert (result["devices"], result["hours"], result["seed"]) == (64, 6.0, 1)
    for policy in result["policies"]:
        assert policy["goodput"] + sum(policy["badput"].values()) == pytest.approx(1.0)
        assert policy["goodput"] + sum(policy["lost_to"].values()) == pytest.approx(1.0)
        assert {"rule", "source", "limits", "constants"} <= policy.keys()


def test_seeds_decide(capsys):
    one = numbers(capsys, *SMALL, *PEERS)
    assert one == numbers(capsys, *SMALL, *PEERS)
    assert one != numbers(capsys, *SMALL, *PEERS, "--seed", "2")


def test_llama3s_rate_is_the_default(capsys):
    result = numbers(capsys, "simulate", "--hours", "1", "--policy", "recycle")
    assert "Llama 3's rate" in result["failures"]
    assert pytest.approx(2111, abs=1) == LLAMA3_DEVICE_MS / 86_400_000


@pytest.mark.slow
def test_holdfast_and_the_report(capsys, tmp_path):
    page, journal = tmp_path / "report.html", tmp_path / "journal.jsonl"
    files = ["--html", str(page), "--journal", str(journal)]
    assert main([*SMALL[:-1], "1", "--policy", "ft-hsdp,holdfast", *files]) == 0
    assert "<svg" in page.read_text()
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    assert {line["policy"] for line in lines} == {"ft-hsdp", "holdfast"}
    decided = [line for line in lines if line["event"] == "decided"]
    assert all(line["strategy"] and line["reason"] for line in decided)
    assert "Holdfast" in capsys.readouterr().out


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "spot.csv"
    added = [f"0,add,node{i}" for i in range(4)]
    later = ["600000,remove,node1", "900000,add,node9", "1800000,remove,node0"]
    path.write_text("\n".join([*added, *later]))
    return path


def test_a_trace_says_how_large_the_job_is(capsys, trace):
    options = ["simulate", "--model", "llama-7b", "--trace", str(trace), *PEERS]
    result = numbers(capsys, *options)
    assert (result["devices"], result["hours"]) == (32, 0.5)
    assert "2 nodes leave" in result["failures"]
    assert numbers(capsys, *options, "--hours", "0.2")["hours"] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--devices", "100"], "100 devices are not a multiple of 64"),
        (["--mtbf", "soon"], "--mtbf 'soon' is not a time"),
        (["--mtbf", "0s"], "is not a time"),
        (["--hours", "0"], "--hours 0"),
        (["--policy", "magic"], "policy 'magic' is unknown"),
        (["--model", "gpt-9"], "model 'gpt-9' is unknown"),
        (["--replicas", "-1"], "--replicas -1"),
        (["--devices-per-node", "0"], "--devices-per-node 0"),
        (["--trace", "nowhere.csv"], "nowhere.csv"),
        (["--html", "nowhere/x.html"], "the folder nowhere does not exist"),
        (["--devices", "64", "--stages", "1", "--mtbf", "1h"], "needs 155"),
        (["--trace", "x.csv", "--mtbf", "1h"], "contradict"),
        (["--trace", "x.csv", "--devices", "8"], "contradict"),
    ],
)
def test_mistakes_are_told_in_one_line(capsys, options, words):
    assert words in error_of(capsys, *options)


def test_spans_of_time():
    assert [parse_span(t, "--x") for t in ("250ms", "90s", "18m", "2.5h", "1d")] == [
        250, 90_000, 1_080_000, 9_000_000, 86_400_000,
    ]  # fmt: skip
    with pytest.raises(HoldfastError, match="--x '-5m'"):
        parse_span("-5m", "--x")
