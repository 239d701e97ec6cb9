import json

from holdfast.cli.main import main


def test_the_story(capsys):
    assert main(["demo"]) == 0
    out = capsys.readouterr().out
    for words in (
        "1. A healthy step",
        "2. One slow worker: r0.s1",
        "3. Rerouted: r0.s1 is dead",
        "iteration time 33,",
        "iteration time 42 (+27 %)",
        "iteration time 39 (+18 %)",
        "r0.s1 lost",
        "r0-2.s0 x 3",
    ):
        assert words in out
    assert max(map(len, out.splitlines())) <= 120


def test_pictures_share_one_scale(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["demo"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "F0" in line]
    starts = {line.index("F0") - line.count("·", 0, line.index("F0")) for line in lines[:2]}
    assert len(starts) == 1


def test_numbers_for_other_programs(capsys):
    assert main(["demo", "--json"]) == 0
    story = json.loads(capsys.readouterr().out)
    assert [picture["iteration_time"] for picture in story] == [33, 42, 39]
