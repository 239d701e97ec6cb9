"""What `holdfast clean` does."""

from pathlib import Path

from holdfast.cli.plan_show import print_json
from holdfast.errors import HoldfastError
from holdfast.observe.quantities import count, format_bytes
from holdfast.observe.run_directory import JOURNAL, MEMORY
from holdfast.runtime.launch.resume import earlier_job
from holdfast.snapshot.memory.leftovers import LeftMemory, find_left, remove_left


def clean_memory(run_dir: Path | None, *, remove: bool, as_json: bool) -> None:
    found = find_left(run_dir=run_dir)
    if run_dir is not None:
        if (own := run_dir / MEMORY).is_dir():
            found += find_left(own)
        if (given := _given_folder(run_dir)) is not None:
            found += find_left(given, run_dir)
        if not found and not (run_dir / JOURNAL).is_file():
            raise HoldfastError(f"{run_dir} has left no memory, and is no run directory")
    removed = [name for left in found for name in remove_left(left)] if remove else []
    if as_json:
        print_json({"found": found, "removed": removed})
        return
    for left in found:
        print(describe_left(left))
    size = format_bytes(sum(left.num_bytes for left in found))
    if not found:
        print("no run has left memory behind")
    elif remove:
        print(f"removed {count(len(removed), 'file')}, {size}")
    else:
        print(f"{size} in all; --yes removes them")


def _given_folder(run_dir: Path) -> Path | None:
    """Where the run was told to keep its memory."""
    job = earlier_job(str(run_dir))
    given = job.snapshot.memory_folder if job is not None else ""
    return Path(given) if given and Path(given).is_dir() else None


def describe_left(left: LeftMemory) -> str:
    where = left.run_dir or f"no run directory ({', '.join(left.jobs)})"
    return f"{format_bytes(left.num_bytes)} of {where}, {count(len(left.files), 'file')}"
