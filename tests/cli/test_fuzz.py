"""`holdfast fuzz`, through the command line."""

import json

from holdfast.cli.main import main


def test_seeds_are_run_and_counted(capsys):
    assert main(["fuzz", "--seeds", "3", "--processes", "1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("3 runs, ")
    assert "rounds" in out
    assert out.endswith("no promise was broken\n")


def test_numbers_for_programs(capsys):
    assert main(["fuzz", "--seed", "4", "--json"]) == 0
    total = json.loads(capsys.readouterr().out)
    assert total["num_runs"] == 1
    assert total["broken"] == []
    assert total["coverage"]["starts"] >= 1


def test_a_broken_promise_is_told_with_its_seed_and_trace(capsys):
    assert main(["fuzz", "--seed", "0", "--rules-off", "journal-first"]) == 1
    out = capsys.readouterr().out
    assert "seed 0: P6: " in out
    assert "    " in out
    assert "1 broken promises" in out


def test_an_unknown_rule_is_one_line(capsys):
    assert main(["fuzz", "--rules-off", "luck"]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "no rule 'luck'" in err


def test_no_seeds_is_a_mistake(capsys):
    assert main(["fuzz", "--seeds", "0"]) == 1
    assert "at least 1" in capsys.readouterr().err
