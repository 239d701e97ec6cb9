import msgspec

from holdfast.observe.plain_progress import PlainProgress
from support.job_events import STARTED, step


def test_plain_lines_of_a_long_run():
    lines: list[str] = []
    with PlainProgress(lines.append) as progress:
        progress(msgspec.structs.replace(STARTED, steps=1000))
        for number in range(1000):
            progress(step(number, 1.0))
    assert len(lines) == 1 + 101
    assert lines[1].startswith("step    1/1000")
    assert lines[-1].startswith("step 1000/1000")
