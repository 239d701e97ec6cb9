"""The final state is one version, whole or not there.

Workers write what they hold below `final.part/`, in a folder of the epoch in which they finished. A
worker that is lost meanwhile makes the others finish again, in another epoch. When all processes
are gone, the newest folder that has the files of all workers of its plan becomes `final/`.
"""

import re
import shutil
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.observe.run_directory import FINAL, FINAL_PARTS, plan_name
from holdfast.plan.text import parse_plan

SUFFIX = ".safetensors"
_EPOCH = re.compile(r"epoch-(\d+)")


def epoch_folder(parts: Path, epoch: int) -> Path:
    return parts / f"epoch-{epoch}"


def publish_final(run_dir: Path) -> bool:
    """True: there is a final state now."""
    parts, final = run_dir / FINAL_PARTS, run_dir / FINAL
    epochs = [int(found[1]) for path in parts.glob("*") if (found := _EPOCH.fullmatch(path.name))]
    whole = next((e for e in sorted(epochs, reverse=True) if not missing_in(run_dir, e)), None)
    if whole is not None:
        shutil.rmtree(final, ignore_errors=True)
        epoch_folder(parts, whole).rename(final)
    shutil.rmtree(parts, ignore_errors=True)
    return whole is not None


def missing_in(run_dir: Path, epoch: int) -> list[str]:
    """Workers of that epoch that have not written what they hold."""
    try:
        plan = parse_plan((run_dir / plan_name(epoch)).read_text(encoding="utf-8"))
    except (OSError, HoldfastError):
        return ["any worker: its plan cannot be read"]
    folder = epoch_folder(run_dir / FINAL_PARTS, epoch)
    return [name for name in plan.workers if not (folder / f"{name}{SUFFIX}").is_file()]
