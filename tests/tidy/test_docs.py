"""The commands in the documentation run.

In ```console and ```bash blocks of README.md and docs/*.md, every `holdfast ...` line is run and
has to end with 0; in a block with `$ ` prompts only the lines behind a prompt are commands, the
others are output. The commands of one document run in order, in one empty folder, so a later one
may read what an earlier one wrote. A `# not run` line before a command leaves it out.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tidy.source_tree import ROOT, assert_none

DOCUMENTS = [
    path for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if path.is_file()
]

BLOCK = re.compile(
    r"^(?P<indent> *)```(?:console|bash)\b[^\n]*\n(?P<body>.*?)^(?P=indent)```", re.M | re.S
)


def commands(text: str) -> list[str]:
    """The commands to run, a line that ends with a backslash joined to its next."""
    return [command for block in BLOCK.finditer(text) for command in _commands(block["body"])]


def _commands(body: str) -> list[str]:
    lines = [line.strip() for line in re.sub(r"\\\n\s*(> )?", "", body).splitlines()]
    prompt = "$ " if any(line.startswith("$ ") for line in lines) else ""
    found: list[str] = []
    skip = False
    for line in lines:
        if line.startswith(f"{prompt}holdfast ") and not skip:
            found.append(line.removeprefix(prompt))
        skip = line.lower().startswith("# not run")
    return found


def run_all(text: str, folder: Path) -> list[str]:
    """Run the commands of one document; the complaints about those that fail."""
    binaries = folder / ".bin"
    binaries.mkdir()
    launcher = binaries / "holdfast"
    launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m holdfast.cli.main "$@"\n')
    launcher.chmod(0o755)
    environment = os.environ | {"PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}"}
    complaints = []
    for command in commands(text):
        done = subprocess.run(
            command,
            shell=True,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            complaints.append(f"{command!r} ended with {done.returncode}: {done.stderr.strip()}")
    return complaints


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documented_commands_run(document, tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    assert_none(run_all(document.read_text(), tmp_path))


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


@pytest.mark.process
@pytest.mark.slow
def test_a_command_that_fails_is_seen(tmp_path):
    text = "```bash\nholdfast --version > out.txt\nholdfast nonsense\n```\n"
    complaints = run_all(text, tmp_path)
    assert len(complaints) == 1
    assert "ended with 2" in complaints[0]
    assert (tmp_path / "out.txt").read_text().startswith("holdfast ")
