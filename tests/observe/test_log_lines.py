import msgspec

from holdfast.observe.log_lines import LogFollower, LogLine, format_log_line


def line(second: int, process: str = "n0.g0", **fields) -> LogLine:
    time = f"2026-01-31T12:00:{second:02d}.250Z"
    return LogLine(
        time=time, level="info", process=process, pid=7, module="m", message="what", **fields
    )


def test_text_says_when_who_at_which_step_and_what():
    assert format_log_line(line(5)) == "12:00:05.250 info n0.g0: what"
    assert format_log_line(line(5, step=3)) == "12:00:05.250 info n0.g0 step 3: what"
    assert format_log_line(line(5, error="Traceback\nx")).endswith(": what\nTraceback\nx")


def test_all_files_are_followed_each_line_once_and_in_order(tmp_path):
    logs = LogFollower(tmp_path)
    assert logs.read() == []
    a, b = tmp_path / "n0.g0.jsonl", tmp_path / "agent-n0.jsonl"
    first, second, third = line(1), line(2, "agent n0", step=0), line(3)
    a.write_bytes(b"\n".join(map(msgspec.json.encode, (first, third))) + b"\n")
    b.write_bytes(msgspec.json.encode(second))
    (tmp_path / "n0.g0.log").write_text("printed by something else\n")
    assert logs.read() == [first, third], "half a line is none"
    with b.open("ab") as file:
        file.write(b"\n")
    assert logs.read() == [second]
    assert logs.read() == []
