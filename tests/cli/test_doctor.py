"""What is wrong with a machine: every check can fail, and says both values and the remedy."""

import json
import resource
from pathlib import Path

import msgspec
import pytest

from holdfast.cli import doctor_devices as devices
from holdfast.cli import doctor_host as host
from holdfast.cli import doctor_show
from holdfast.cli.doctor_check import ok
from holdfast.cli.main import main

HEALTHY = devices.Devices(
    torch="2.13.0",
    cuda="13.0",
    nccl="2.28.9",
    driver="580.1",
    num_driver_gpus=1,
    gpus=(("H200", 139 * 2**30, 140 * 2**30),),
)
GIB = 2**30


def with_(**changes):
    return msgspec.structs.replace(HEALTHY, **changes)


BAD = [
    (host.check_python("3.11.1", "Darwin"), "fail", "Darwin"),
    (host.check_python("3.10.2", "Linux"), "fail", "3.10.2"),
    (host.check_cores(1, 8), "warn", "1 of 8 usable"),
    (host.check_memory(GIB), "warn", "1.0 GiB"),
    (host.check_shared_memory(64 * 2**20, "/dev/shm"), "warn", "64.0 MiB free at /dev/shm"),
    (host.check_descriptors(32, 32), "fail", "32 open files"),
    (host.check_descriptors(64, 64), "warn", "64 open files"),
    (host.check_processes(100), "warn", "100 processes"),
    (host.check_address_space(GIB), "warn", "1.0 GiB"),
    (host.check_loopback("203.0.113.1"), "fail", "203.0.113.1"),
    (host.check_ports((40000, 40100)), "warn", "40000 to 40100"),
    (host.check_clock(0.0, 1.7e9, 0), "warn", "1970-01-01"),
    (host.check_disk(Path("/proc"), 100 * GIB), "fail", "/proc"),
    (host.check_disk(Path("/"), 0), "fail", "0 B free"),
    (devices.check_torch(devices.Devices(torch="", error="no module")), "fail", "not installed"),
    (devices.check_torch(with_(has_gloo=False)), "fail", "without gloo"),
    (devices.check_gpus(with_(gpus=(), cuda="")), "warn", "built for the CPU"),
    (devices.check_gpus(with_(gpus=())), "fail", "torch finds none"),
    (devices.check_gpus(with_(gpus=(("H200", GIB, 140 * GIB),))), "warn", "1.0 GiB of 140 GiB"),
    (devices.check_driver(with_(driver_error="no devices")), "fail", "no devices"),
    (devices.check_driver(with_(driver="")), "warn", "no nvidia-smi"),
    (devices.check_nccl(with_(nccl="")), "fail", "has none"),
]


@pytest.mark.parametrize(("check", "level", "words"), BAD, ids=lambda value: str(value)[:40])
def test_what_is_wrong_is_told(check, level, words):
    assert check.level == level
    assert words in check.found
    assert check.needed
    assert check.remedy


def test_what_is_right():
    for check in (
        host.check_python("3.12.1", "Linux"),
        host.check_cores(8, 8),
        host.check_memory(64 * GIB),
        host.check_shared_memory(GIB, "/dev/shm"),
        host.check_descriptors(1024, resource.RLIM_INFINITY),
        host.check_processes(-1),
        host.check_address_space(resource.RLIM_INFINITY),
        host.check_loopback(),
        host.check_ports(host.port_range()),
        host.check_clock(1.8e9, 1.7e9, 5),
        devices.check_torch(HEALTHY),
        devices.check_gpus(HEALTHY),
        devices.check_gpus(devices.Devices(torch="2.13.0")),
        devices.check_driver(HEALTHY),
        devices.check_nccl(HEALTHY),
    ):
        assert (check.level, check.remedy) == ("ok", "")


def test_a_driver_that_fails(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert devices.ask_driver() == ("", 0, "")
    for text, expected in (
        ("echo 580.1; echo 580.1", ("580.1", 2, "")),
        ("echo No devices were found; exit 6", ("", 0, "No devices were found")),
    ):
        tool.write_text(f"#!/bin/sh\n{text}\n")
        tool.chmod(0o755)
        assert devices.ask_driver() == expected


def test_this_machine(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"]
    assert {
        "shared memory",
        "descriptors",
        "loopback",
        "clock",
        "disk",
        "torch",
        "gpus",
        "nccl",
    } <= {check["name"] for check in found["checks"]}
    assert not list(tmp_path.iterdir())


def test_exit_code_and_lines(capsys, monkeypatch, tmp_path):
    """The machine is fine, and the job does not fit it."""
    monkeypatch.setattr(host, "checks", lambda folder: iter([ok("python", "3.11")]))
    monkeypatch.setattr(devices, "checks", lambda: iter([devices.check_nccl(with_(nccl=""))]))
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "ok   python          3.11" in out
    assert "fail nccl            this build of torch has none" in out
    assert "install torch for CUDA" in out
    job = tmp_path / "job.toml"
    job.write_text('[job]\nsteps = 1\n[model]\npreset = "llama-70b"\n')
    (check,) = doctor_show._job_checks(job)
    assert check.level == "fail"
    assert "llama-70b has" in check.found
