"""When a host is not cut off; that it is, and comes back, is in tests/hosts."""

import asyncio
import logging
import os

import psutil
import pytest

from holdfast.runtime.faults import host_cut
from holdfast.runtime.faults.host_cut import HostCut, why_not_cut


def test_a_host_without_others_is_not_cut_off(caplog):
    async def cut() -> None:
        await HostCut([], 60.0)._task

    with caplog.at_level(logging.WARNING):
        asyncio.run(cut())
    assert "HOST_CUT was not done: the job has no other host" in caplog.text


@pytest.mark.parametrize(
    ("user", "program", "why"),
    [(1000, "/sbin/iptables", "root"), (0, None, "iptables"), (0, "/sbin/iptables", "")],
)
def test_what_a_cut_needs(monkeypatch, user, program, why):
    monkeypatch.setattr(host_cut.os, "geteuid", lambda: user)
    monkeypatch.setattr(host_cut.shutil, "which", lambda name: program)
    assert why in why_not_cut(["10.0.0.1"])
    assert bool(why_not_cut(["10.0.0.1"])) == bool(why)


@pytest.fixture
def rules(tmp_path, monkeypatch):
    """A file with all that iptables was told; the kernel's rules stay as they are."""
    told = tmp_path / "told"
    for name in ("iptables", "ip6tables"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho {name} "$@" >> {told}\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(host_cut.os, "geteuid", lambda: 0)
    return told


def rules_of(told, *, added: bool) -> list[str]:
    mark = "-I" if added else "-D"
    return [
        line.replace(f" {mark} ", " ") for line in told.read_text().splitlines() if mark in line
    ]


def test_a_cut_ends_by_itself(rules):
    async def cut() -> None:
        await HostCut(["10.0.0.1", "fe80::1"], 0.1)._task

    asyncio.run(cut())
    assert len(rules_of(rules, added=True)) == 4
    assert rules_of(rules, added=True) == rules_of(rules, added=False)
    assert "ip6tables -w -I INPUT -s fe80::1 -j DROP" in rules.read_text()


def test_a_cut_that_is_ended_undoes_its_rules_and_leaves_no_process(rules):
    async def cut() -> None:
        begun = HostCut(["10.0.0.1"], 600.0)
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
        begun = HostCut(["10.0.0.1"], 600.0)
        await asyncio.sleep(0)
        await begun.end()

    asyncio.run(cut())
    if rules.exists():
        assert set(rules_of(rules, added=True)) <= set(rules_of(rules, added=False))
