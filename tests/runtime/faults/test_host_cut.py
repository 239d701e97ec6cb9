"""When a host is not cut off; that it is, and comes back, is in tests/hosts."""

import asyncio
import logging

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


def test_a_cut_that_is_ended_leaves_no_shell(monkeypatch):
    """And its rules are taken back: they are its own end's to undo."""
    monkeypatch.setattr(host_cut, "why_not_cut", lambda addresses: "")
    monkeypatch.setattr(host_cut, "_SCRIPT", "trap 'exit 0' TERM; sleep 600 & wait")

    async def cut() -> None:
        begun = HostCut(["10.0.0.1"], 600.0)
        await asyncio.sleep(0)
        await begun.end()
        assert begun._shell is not None
        assert begun._shell.returncode is not None

    asyncio.run(cut())
