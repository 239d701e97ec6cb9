"""Commands are drawn as on a plain screen of 120 characters, wherever the tests run."""

from contextlib import nullcontext

import pytest


@pytest.fixture(autouse=True)
def plain_screen(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def lent_fork_server(fork_server, monkeypatch):
    """Jobs borrow a warm fork server instead of starting their own."""
    for module in ("holdfast.runtime.launch.launcher", "holdfast.cli.demo_training"):
        monkeypatch.setattr(f"{module}.ForkServer", lambda *_: nullcontext(fork_server))
