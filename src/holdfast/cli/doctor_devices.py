"""torch, GPUs, their driver and NCCL."""

import shutil
import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

import msgspec

from holdfast.cli.doctor_check import Check, failed, ok, warned
from holdfast.observe.quantities import count, format_bytes

SMI_S = 20.0
BUSY = 0.1
"""The share of a GPU's memory that others may have before it is told."""


class Devices(msgspec.Struct, frozen=True, kw_only=True):
    """What torch and the driver say."""

    torch: str
    cuda: str = ""
    """That torch was built with; empty: none."""
    has_gloo: bool = True
    nccl: str = ""
    """Empty: there is none."""
    driver: str = ""
    """Empty: there is no nvidia-smi, or it fails."""
    driver_error: str = ""
    num_driver_gpus: int = 0
    gpus: tuple[tuple[str, int, int], ...] = ()
    """Name, free and all bytes of those that torch can use."""
    error: str = ""
    """Why torch cannot be used."""


def checks() -> Iterator[Check]:
    found = find_devices()
    yield check_torch(found)
    if found.error:
        return
    yield check_gpus(found)
    yield check_driver(found)
    yield check_nccl(found)


def find_devices() -> Devices:
    driver, gpus, driver_error = ask_driver()
    about = Devices(
        torch=_version("torch"), driver=driver, num_driver_gpus=gpus, driver_error=driver_error
    )
    try:
        import torch
        import torch.distributed as dist
    except (ImportError, OSError) as error:
        return msgspec.structs.replace(about, error=str(error))
    names = []
    for number in range(torch.cuda.device_count()):
        free, there = torch.cuda.mem_get_info(number)
        names.append((torch.cuda.get_device_name(number), free, there))
    has_nccl = dist.is_available() and dist.is_nccl_available()
    nccl = torch.cuda.nccl.version() if has_nccl else ()  # type: ignore[no-untyped-call]
    return msgspec.structs.replace(
        about,
        torch=torch.__version__,
        cuda=torch.version.cuda or "",
        has_gloo=dist.is_available() and dist.is_gloo_available(),
        nccl=".".join(map(str, nccl)),
        gpus=tuple(names),
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def ask_driver() -> tuple[str, int, str]:
    """(version, number of GPUs, what is wrong) as nvidia-smi says it."""
    if (tool := shutil.which("nvidia-smi")) is None:
        return "", 0, ""
    words = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=SMI_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", 0, str(error)
    lines = done.stdout.split()
    if done.returncode or not lines:
        return "", 0, " ".join((done.stdout + done.stderr).split()) or "it lists no GPU"
    return lines[0], len(lines), ""


def check_torch(found: Devices) -> Check:
    if found.error:
        shown = f"{found.torch or 'not installed'}: {found.error}"
        return failed("torch", shown, "it cannot be imported", "pip install 'torch>=2.9'")
    shown = f"{found.torch}, {f'CUDA {found.cuda}' if found.cuda else 'for the CPU'}"
    if not found.has_gloo:
        return failed("torch", f"{shown}, without gloo", "jobs need gloo", "install another build")
    return ok("torch", f"{shown}, gloo")


def check_gpus(found: Devices) -> Check:
    there = found.num_driver_gpus
    if not found.gpus and there and not found.cuda:
        return warned(
            "gpus",
            f"{count(there, 'GPU')}, and torch {found.torch} is built for the CPU",
            "device = 'cuda' needs a build for CUDA",
            "install torch for CUDA",
        )
    if not found.gpus and there:
        return failed(
            "gpus",
            f"the driver has {count(there, 'GPU')}, torch finds none",
            f"CUDA {found.cuda} of torch has to fit driver {found.driver}",
            "look at CUDA_VISIBLE_DEVICES; update the driver, or install torch for an older CUDA",
        )
    if not found.gpus:
        return ok("gpus", "none: jobs run with device = 'cpu'")
    busy = [
        f"{number}: {format_bytes(free)} of {format_bytes(there)} free"
        for number, (_, free, there) in enumerate(found.gpus)
        if there - free > BUSY * there
    ]
    shown = f"{count(len(found.gpus), 'GPU')} ({found.gpus[0][0]})"
    if busy:
        return warned(
            "gpus",
            f"{shown}; {', '.join(busy)}",
            "all of their memory is expected to be free",
            "nvidia-smi shows which processes hold it",
        )
    return ok("gpus", f"{shown}, {format_bytes(found.gpus[0][2])} each")


def check_driver(found: Devices) -> Check:
    if found.driver_error:
        return failed(
            "driver",
            f"nvidia-smi: {found.driver_error}",
            "a driver that answers",
            "reload or reinstall the driver; dmesg says why it fails",
        )
    if found.gpus and not found.driver:
        return warned(
            "driver", "there is no nvidia-smi", "its version is not known", "install nvidia-utils"
        )
    return ok("driver", found.driver or "none, and no GPU")


def check_nccl(found: Devices) -> Check:
    if found.gpus and not found.nccl:
        return failed(
            "nccl",
            "this build of torch has none",
            "device = 'cuda' needs it for groups",
            "install torch for CUDA, or set job.backend = 'gloo'",
        )
    return ok("nccl", found.nccl or "none, and not needed without a GPU")
