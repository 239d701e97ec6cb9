"""What `holdfast plan replay` does: a decision of a run, made again from what it was made from."""

from pathlib import Path

import msgspec

from holdfast.advisor.answer import answer_after
from holdfast.cli.plan_show import make_console, print_json
from holdfast.control.plan_worth import decide_on
from holdfast.errors import HoldfastError
from holdfast.observe.events import PlanConsidered, event_fields
from holdfast.observe.journal import read_journal
from holdfast.observe.plan_decisions import line_of, read_question
from holdfast.observe.run_directory import JOURNAL


def replay_decision(run_dir: Path, number: int, *, as_json: bool) -> int:
    """0: the same decision again."""
    before = _find(run_dir, number)
    path = run_dir / before.file
    if not path.is_file():
        raise HoldfastError(f"decision {number}: {path}, which it was made from, is not there")
    question = read_question(path.read_text(encoding="utf-8"), before.file)
    answer = answer_after(question, before.rounds)
    again = line_of(question, answer, decide_on(question, answer), number=number, file=before.file)
    differences = _differences(before, again)
    if as_json:
        print_json({"equal": not differences, "differences": differences,
                    "decision": event_fields(again)})  # fmt: skip
    else:
        _tell(again, differences)
    return 1 if differences else 0


def _find(run_dir: Path, number: int) -> PlanConsidered:
    if not (run_dir / JOURNAL).is_file():
        raise HoldfastError(f"{run_dir} is no run directory: it has no {JOURNAL}")
    found = [e for e in read_journal(run_dir / JOURNAL) if isinstance(e, PlanConsidered)]
    for event in found:
        if event.decision == number:
            return event
    known = f"1 to {found[-1].decision}" if found else "none"
    raise HoldfastError(f"{run_dir} has no decision {number} about plans; it has {known}")


def _differences(before: PlanConsidered, again: PlanConsidered) -> list[str]:
    old, new = msgspec.structs.asdict(before), msgspec.structs.asdict(again)
    return [f"{name}: {old[name]!r}, now {new[name]!r}" for name in old if old[name] != new[name]]


def _tell(again: PlanConsidered, differences: list[str]) -> None:
    console = make_console()
    for name, text in (
        ("asked", again.asked),
        ("won", f"{again.strategy}: {again.shape}, step {again.step_s:.4g} s"),
        ("before", f"step {again.now_step_s:.4g} s"),
        ("entered", f"{'yes' if again.entered else 'no'}: {again.reason}"),
        *(("lost", line) for line in again.runner_ups),
        ("replay", "; ".join(differences) or "equal"),
    ):
        console.print(f"{name:8} {text}", soft_wrap=True, markup=False)
