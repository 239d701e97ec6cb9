"""When a host is not cut off or slow; that it is, and comes back, is in tests/hosts."""

import asyncio
import logging
import os

import psutil
import pytest

from holdfast.runtime.faults import host_network
from holdfast.runtime.faults.host_network import HostTrouble, why_not
from holdfast.runtime.faults.kinds import Fault


def cut_off(addresses: list[str], duration_s: float) -> HostTrouble:
    return HostTrouble(Fault(kind="HOST_CUT", duration_s=duration_s), addresses)


def test_a_host_without_others_is_not_cut_off(caplog):
    async def cut() -> None:
        await cut_off([], 60.0)._task

    with caplog.at_level(logging.WARNING):
        asyncio.run(cut())
    assert "HOST_CUT was not done: the job has no other host" in caplog.text


@pytest.mark.parametrize(
    ("kind", "user", "program", "why"),
    [
        ("HOST_CUT", 1000, "/sbin/iptables", "root"),
        ("HOST_CUT", 0, None, "iptables"),
        ("HOST_CUT", 0, "/sbin/iptables", ""),
        ("HOST_SLOW", 0, None, "no tc here"),
    ],
)
def test_what_it_needs(monkeypatch, kind, user, program, why):
    monkeypatch.setattr(host_network.os, "geteuid", lambda: user)
    monkeypatch.setattr(host_network.shutil, "which", lambda name: program)
    assert why in why_not(kind, ["10.0.0.1"])
    assert bool(why_not(kind, ["10.0.0.1"])) == bool(why)


@pytest.fixture
def rules(tmp_path, monkeypatch):
    """A file with all that the programs were told; the kernel's rules stay as they are."""
    told = tmp_path / "told"
    for name in ("iptables", "ip6tables", "tc"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho {name} "$@" >> {told}\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(host_network.os, "geteuid", lambda: 0)
    return told


def rules_of(told, *, added: bool) -> list[str]:
    mark = "-I" if added else "-D"
    return [
        line.replace(f" {mark} ", " ") for line in told.read_text().splitlines() if mark in line
    ]


def test_a_cut_ends_by_itself(rules):
    async def cut() -> None:
        await cut_off(["10.0.0.1", "fe80::1"], 0.1)._task

    asyncio.run(cut())
    assert len(rules_of(rules, added=True)) == 4
    assert rules_of(rules, added=True) == rules_of(rules, added=False)
    assert "ip6tables -w -I INPUT -s fe80::1 -j DROP" in rules.read_text()


def test_a_slow_host_is_slow_by_every_interface_that_leads_to_others(rules, tmp_path):
    route = tmp_path / "ip"
    route.write_text(
        '#!/bin/sh\ncase $4 in 10.*) d=eth0 ;; *) d=ib0 ;; esac; echo "$4 dev $d uid"\n'
    )
    route.chmod(0o755)

    async def slow() -> None:
        fault = Fault(kind="HOST_SLOW", duration_s=0.1, rate_mbit=2.5)
        await HostTrouble(fault, ["10.0.0.1", "11.0.0.1", "10.0.0.2"])._task

    asyncio.run(slow())
    told = rules.read_text().splitlines()
    limit = "root tbf rate 2.5mbit burst 32kb latency 1s"
    assert told[:2] == [f"tc qdisc replace dev {name} {limit}" for name in ("eth0", "ib0")]
    assert told[2:] == [f"tc qdisc del dev {name} root" for name in ("eth0", "ib0")]


def test_a_host_that_no_interface_leads_away_from_is_not_slow(rules, tmp_path, caplog):
    route = tmp_path / "ip"
    route.write_text('#!/bin/sh\necho "$4 dev lo uid"\n')
    route.chmod(0o755)

    async def slow() -> None:
        await HostTrouble(Fault(kind="HOST_SLOW", duration_s=60, rate_mbit=2), ["10.0.0.1"])._task

    with caplog.at_level(logging.WARNING):
        asyncio.run(slow())
    assert "HOST_SLOW: not any more: no interface leads to 10.0.0.1" in caplog.text
    assert not rules.exists()


def test_a_cut_that_is_ended_undoes_its_rules_and_leaves_no_process(rules):
    async def cut() -> None:
        begun = cut_off(["10.0.0.1"], 600.0)
        while not rules.exists() or len(rules_of(rules, added=True)) < 2:
            await asyncio.sleep(0.01)
        await begun.end()

    asyncio.run(cut())
    assert rules_of(rules, added=True) == rules_of(rules, added=False)
    assert not [
        p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "600"]
    ]


def test_a_cut_that_is_ended_at_once(rules):
    async def cut() -> None:
        begun = cut_off(["10.0.0.1"], 600.0)
        await asyncio.sleep(0)
        await begun.end()

    asyncio.run(cut())
    if rules.exists():
        assert set(rules_of(rules, added=True)) <= set(rules_of(rules, added=False))
