"""The code in the documentation runs.

The blocks of one document are taken in order, in one empty folder, so a later one may use what an
earlier one wrote:

    console, bash   every `holdfast`, `python` or `printf` line is run and has to end with 0; in a
                    block with `$ ` prompts only the lines behind a prompt are commands, the others
                    are output. A `# not run` line before a command leaves it out.
    python, toml    where the first line is `# name.py`, it is written to that file; python is
                    executed (what stands below `if __name__ == "__main__":` is not), toml is read
                    as a job file. `<!-- not run ... -->` above it: only its syntax is checked.
    text            output, and what is not ours

The pages below reference/ are made from the code and compared with it.

Most commands run in this process, and their jobs borrow a warm fork server: an interpreter and its
imports take longer than what they do. Where the folder has code of its own, a warm process that
ends with the command runs it. A shell gets those that need one.
"""

import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.cli.main import main
from holdfast.errors import HoldfastError
from holdfast.runtime.config.settings import read_tables
from holdfast.runtime.launch.fork_server import ForkServer
from support import command_work
from support.cluster import Cluster
from tidy.source_tree import ROOT, assert_none

DOCS = ROOT / "docs"
DOCUMENTS = [path for path in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))] if path.is_file()]

BLOCK = re.compile(
    r"(?P<above>^<!-- not run[^\n]*\n)?^(?P<indent> *)```(?P<language>\w*)[^\n]*\n"
    r"(?P<body>.*?)^(?P=indent)```",
    re.M | re.S,
)
RUN = ("holdfast ", "python ", "printf ")
LANGUAGES = ("console", "bash", "python", "toml", "text")
LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(#[^)\s]*)?\)")


class Block(NamedTuple):
    language: str
    body: str
    is_run: bool

    @property
    def file(self) -> str:
        """The file it is written to; empty: none."""
        found = re.match(r"# ([\w./-]+\.(?:py|toml))\n", self.body)
        return found[1] if found else ""


def blocks(text: str) -> Iterator[Block]:
    for found in BLOCK.finditer(text):
        lines = found["body"].splitlines(keepends=True)
        body = "".join(line.removeprefix(found["indent"]) for line in lines)
        yield Block(found["language"], body, found["above"] is None)


def commands(text: str, *, all_of_them: bool = False) -> list[str]:
    """The commands to run, a line that ends with a backslash joined to its next."""
    return [
        command
        for block in blocks(text)
        if block.language in ("console", "bash")
        for command in _commands(block.body, all_of_them=all_of_them)
    ]


def _commands(body: str, *, all_of_them: bool = False) -> list[str]:
    lines = [line.strip() for line in re.sub(r"\\\n\s*(> )?", "", body).splitlines()]
    prompt = "$ " if any(line.startswith("$ ") for line in lines) else ""
    found: list[str] = []
    skip = False
    for line in lines:
        command = line.removeprefix(prompt)
        is_ours = line.startswith(tuple(prompt + word for word in RUN)) and not skip
        is_any = line.startswith(prompt) and not line.startswith("#")
        if is_ours or (all_of_them and is_any):
            found.append(command)
        skip = line.lower().startswith("# not run")
    return found


NEEDS_SHELL = re.compile(r"[|<>;&$`]| --jobs |^(?!holdfast )")

Outcome = tuple[int, str]
"""Exit code, and what went to standard error."""


class Shell:
    """Runs commands as a reader of the documents would."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        binaries = folder / ".bin"
        binaries.mkdir()
        for name, words in (("holdfast", "-m holdfast"), ("python", "")):
            launcher = binaries / name
            launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
            launcher.chmod(0o755)
        path = f"{binaries}{os.pathsep}{os.environ['PATH']}"
        cache = {"XDG_CACHE_HOME": str(folder / ".cache")}
        self._environment = os.environ | cache | {"PATH": path}

    def __call__(self, command: str) -> Outcome:
        done = subprocess.run(
            command,
            shell=True,
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stderr


def run_warm(cluster: Cluster, command: str, folder: Path) -> Outcome:
    said = folder / ".said"
    environment = {name: os.environ[name] for name in ("COLUMNS", "XDG_CACHE_HOME")}
    given = (shlex.split(command)[1:], folder, environment, said)
    (ended,) = cluster.run(command_work.run_command, [given], may_die=[0])
    return ended.exit_code, said.read_text()


@pytest.fixture
def run_command(tmp_path, monkeypatch, capsys, fork_server, cluster):
    """Runs a command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))

    def lend(fds=(), preload=()):
        return ForkServer(fds, preload) if preload else nullcontext(fork_server)

    monkeypatch.setattr("holdfast.runtime.launch.launcher.ForkServer", lend)
    shell = Shell(tmp_path)

    def run(command: str) -> Outcome:
        if NEEDS_SHELL.search(command):
            return shell(command)
        if any(tmp_path.glob("*.py")):
            return run_warm(cluster, command, tmp_path)
        capsys.readouterr()
        code = main(shlex.split(command)[1:])
        return code, capsys.readouterr().err

    return run


RunCommand = Callable[[str], Outcome]


def run_all(text: str, folder: Path, run_command: RunCommand) -> list[str]:
    """Run what one document has; the complaints about what fails."""
    return [line for block in blocks(text) for line in _run_block(block, folder, run_command)]


def _run_block(block: Block, folder: Path, run_command: RunCommand) -> Iterator[str]:
    if block.language not in LANGUAGES:
        yield f"a block of {block.language!r}: one of {', '.join(LANGUAGES)} is checked"
    if block.file:
        (folder / block.file).write_text(block.body)
    match block.language:
        case "console" | "bash":
            for command in _commands(block.body):
                code, said = run_command(command)
                if code != 0:
                    yield f"{command!r} ended with {code}: {said.strip()}"
        case "python":
            yield from _run_python(block, folder)
        case "toml" if block.is_run:
            yield from read_toml(block.body, folder)


def _run_python(block: Block, folder: Path) -> Iterator[str]:
    try:
        code = compile(block.body, block.file or "a block", "exec")
        if block.is_run and "np.save(" not in block.body:  # what writes files is run as a command
            exec(code, {"__name__": "documented"})
    except Exception as error:
        yield f"python: {type(error).__name__}: {error} in {block.body.splitlines()[0]}"


def read_toml(text: str, folder: Path) -> Iterator[str]:
    """Part of a job file: what it does not say is not asked for."""
    try:
        tables = tomllib.loads(text)
        tables.setdefault("job", {}).setdefault("steps", 1)
        read_tables(tables, folder / "job.toml")
    except (tomllib.TOMLDecodeError, HoldfastError) as error:
        yield f"toml: {error}"


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documented_code_runs(document, run_command, tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    assert_none(run_all(document.read_text(), tmp_path, run_command))


def slug(heading: str) -> str:
    """The anchor of a heading, as mkdocs makes it."""
    words = re.sub(r"[^\w\s-]", "", re.sub(r"[`*]|\]\([^)]*\)", "", heading)).strip().lower()
    return re.sub(r"[-\s]+", "-", words)


def broken_links(document: Path) -> Iterator[str]:
    text = BLOCK.sub("", document.read_text())
    for target, anchor in LINK.findall(text):
        there = (document.parent / target).resolve() if target else document
        if not there.exists():
            yield f"{document.relative_to(ROOT)}: there is no {target}"
        elif anchor and there.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", there.read_text()), re.M)
            if anchor[1:] not in map(slug, headings) and f'id="{anchor[1:]}"' not in text:
                yield f"{document.relative_to(ROOT)}: {target} has no heading {anchor}"


def test_links_lead_somewhere():
    made = DOCS / "reference" / "commands.md"  # its anchors are those of the parser
    assert_none(line for path in DOCUMENTS if path != made for line in broken_links(path))


def test_every_page_is_in_the_site():
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    named = re.findall(r": ([\w/-]+\.md)$", nav, re.M)
    assert sorted(named) == sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


def test_the_reference_is_that_of_the_code():
    made = runpy.run_path(str(DOCS / "generate.py"))["pages"]()
    for name, text in made.items():
        assert (DOCS / "reference" / name).read_text() == text, f"{name}: run `make reference`"


def test_a_broken_link_is_seen(tmp_path, monkeypatch):
    page = ROOT / "docs" / "design.md"
    monkeypatch.setattr(Path, "read_text", lambda path, **_: "# A B\n[x](#a-b) [y](#c) [z](no.md)")
    assert [line.partition(": ")[2] for line in broken_links(page)] == [
        " has no heading #c",
        "there is no no.md",
    ]


DOCUMENT = """
```console
$ holdfast --version
holdfast 0.1.0
$ holdfast demo \\
    --quick
$ ls
# not run: needs a cluster
$ holdfast run job.toml
$ holdfast plan
```

1. In a list:

   ```bash
   holdfast report runs/x
   ```

```text
holdfast nonsense
```

Call `holdfast nonsense`, or holdfast nonsense.
"""


def test_commands_are_found():
    assert commands(DOCUMENT) == [
        "holdfast --version",
        "holdfast demo --quick",
        "holdfast plan",
        "holdfast report runs/x",
    ]
    assert commands(DOCUMENT, all_of_them=True) == [
        "holdfast --version",
        "holdfast demo --quick",
        "ls",
        "holdfast run job.toml",
        "holdfast plan",
        "holdfast report runs/x",
    ]


@pytest.mark.process
@pytest.mark.slow
def test_code_that_fails_is_seen(run_command, tmp_path):
    text = """```bash
holdfast --version > out.txt
holdfast nonsense
holdfast nonsense > more.txt
```
```python
# good.py
x = 1
```
```bash
holdfast nonsense --in-a-folder-with-code
```
```python
1 / 0
```
<!-- not run: it would fail -->
```python
1 / 0
```
```toml
[job]
stepps = 3
```
```yaml
a: 1
```
"""
    complaints = run_all(text, tmp_path, run_command)
    begins = ["'holdfast", "'holdfast", "'holdfast", "python:", "toml:", "a"]
    assert [line.split()[0] for line in complaints] == begins
    assert all("ended with 2: " in line for line in complaints[:3])
    assert "did you mean 'steps'?" in complaints[4]
    assert (tmp_path / "out.txt").read_text().startswith("holdfast ")
    assert (tmp_path / "good.py").is_file()
