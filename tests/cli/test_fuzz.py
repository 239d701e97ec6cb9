"""`holdfast fuzz`, through the command line."""

import json

from holdfast.cli import fuzz_run
from holdfast.cli.main import main
from holdfast.sim.fuzz import campaign
from support.mutants import plant


def test_seeds_are_run_and_counted(capsys):
    assert main(["fuzz", "--seeds", "3", "--jobs", "1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("3 runs, ")
    assert "seeds per second" in out.splitlines()[0]
    assert "updates" in out
    assert out.endswith("no promise was broken\n")


def test_progress_is_told_where_there_is_no_terminal(capsys, monkeypatch):
    monkeypatch.setattr(fuzz_run, "SAID_EVERY_S", 0.0)
    assert main(["fuzz", "--seeds", "2", "--jobs", "1"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" seeds")[0] for line in lines] == ["1 of 2", "2 of 2"]


def test_numbers_for_programs(capsys):
    assert main(["fuzz", "--seed", "4", "--json"]) == 0
    total = json.loads(capsys.readouterr().out)
    assert total["num_runs"] == 1
    assert total["broken"] == []
    assert total["coverage"]["starts"] >= 1


def test_seeds_begin_where_they_are_told_to(capsys):
    assert main(["fuzz", "--start", "7", "--seeds", "2", "-j", "1", "--json"]) == 0
    both = json.loads(capsys.readouterr().out)
    assert both["num_runs"] == 2
    assert both["seeds_per_s"] > 0
    found = []
    for seed in (7, 8):
        main(["fuzz", "--seed", str(seed), "--json"])
        found.append(json.loads(capsys.readouterr().out)["num_events"])
    assert both["num_events"] == sum(found)


def test_a_broken_promise_is_told_with_its_seed_and_trace(capsys, monkeypatch):
    plant("journal_first", monkeypatch)
    assert main(["fuzz", "--seed", "0"]) == 1
    out = capsys.readouterr().out
    assert "seed 0: P6: " in out
    assert "as short as it still breaks P6" in out
    assert "1 broken promises" in out


def test_an_interrupt_tells_what_was_done(capsys, monkeypatch):
    run = campaign.run_seed

    def interrupted(seed):
        if seed == 2:
            raise KeyboardInterrupt
        return run(seed)

    monkeypatch.setattr(campaign, "run_seed", interrupted)
    assert main(["fuzz", "--seeds", "5", "-j", "1"]) == 130
    assert "interrupted after 2 of 5 seeds" in capsys.readouterr().out


def test_no_seeds_is_a_mistake(capsys):
    assert main(["fuzz", "--seeds", "0"]) == 1
    assert "at least 1" in capsys.readouterr().err
