import torch

from holdfast.engine.emulated_device import EmulatedDevice
from holdfast.engine.emulation import Emulation
from holdfast.engine.probe_work import EMULATED_S, time_probe
from holdfast.plan.profile import Profile


def test_a_probe_takes_time():
    assert 0 < time_probe(torch.device("cpu")) < 1


def test_an_emulated_device_takes_as_long_as_it_is_slow():
    now = [100.0]
    device = EmulatedDevice(
        Emulation(profile=Profile(), speed={"n0.g0": 0.5}),
        "n0.g0",
        data=None,
        clock=lambda: now[0],
        sleep=lambda seconds: now.__setitem__(0, now[0] + seconds),
    )
    assert time_probe(torch.device("cpu"), device) == 2 * EMULATED_S
    device.slowdown.begin(1.5)
    assert time_probe(torch.device("cpu"), device) == 3 * EMULATED_S
    device.slowdown.begin(1.5, seconds=5.0)
    assert time_probe(torch.device("cpu"), device) == 3 * EMULATED_S
    now[0] += 5.0  # without anything to do meanwhile
    assert time_probe(torch.device("cpu"), device) == 2 * EMULATED_S
