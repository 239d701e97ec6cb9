"""What a new user does: install it in a fresh environment, follow the tutorial, build the site."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from holdfast.observe.journal import read_metrics
from holdfast.observe.run_directory import METRICS
from tidy.source_tree import ROOT, project_files
from tidy.test_docs import commands

pytestmark = [pytest.mark.chaos, pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(3000)]


def run(command, folder, **environment):
    """One line of a shell; what it printed."""
    done = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, f"{command}: {done.returncode}\n{said}"
    return said


@pytest.fixture
def clone(tmp_path):
    """The project's files, and nothing that was built from them."""
    folder = tmp_path / "holdfast"
    for path in project_files():
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    return folder


def test_install_tutorial_site(clone, tmp_path):
    fresh = tmp_path / "fresh"
    subprocess.run([sys.executable, "-m", "venv", fresh], check=True)
    # The constraint lets pip choose the build of torch for the CPU.
    environment = {
        "PATH": f"{fresh}/bin{os.pathsep}{os.environ['PATH']}",
        "PIP_CONSTRAINT": str(clone / "requirements-dev.txt"),
        "PYTHONPATH": "",
        "VIRTUAL_ENV": str(fresh),
    }
    tutorial = commands((clone / "docs" / "tutorial.md").read_text(), all_of_them=True)
    assert tutorial[0] == "pip install ."
    said = {command: run(command, clone, **environment) for command in tutorial}
    where = run('python -c "import holdfast; print(holdfast.__file__)"', tmp_path, **environment)
    assert where.startswith(str(fresh)), "it is the installed one"
    assert "lost: " in said["holdfast run job.toml --job.run_dir runs/killed"]
    calm, killed = (
        {step.step: step.loss for step in read_metrics(clone / "runs" / name / METRICS)}
        for name in ("calm", "killed")
    )
    assert list(killed) == list(range(30))
    assert [killed[n] for n in calm] == pytest.approx(list(calm.values()), rel=1e-4)
    steps = [step.step for step in read_metrics(clone / "runs" / "job" / METRICS)]
    assert set(steps) == set(range(300))
    run(f"make docs PYTHON={sys.executable}", clone, PIP_CONSTRAINT="", PYTHONPATH="")
    pages = list((clone / "site").rglob("*.html"))
    assert {"index.html", "tutorial.html", "settings.html"} <= {page.name for page in pages}
    loaded = (
        r'<(?:script|img|iframe)[^>]+src="https?:|<link rel="(?:stylesheet|preconnect)[^>]+http'
    )
    assert not [page for page in pages if re.search(loaded, page.read_text())]


def test_the_real_packages_of_loggers(tmp_path):
    """Weights & Biases in offline mode, MLflow with a database: too heavy for `make setup`."""
    packages = tmp_path / "packages"
    pip = f"{sys.executable} -m pip -q install"
    run(f"{pip} --target {packages} wandb mlflow", tmp_path)
    command = f"{sys.executable} -m pytest -q tests/observe/loggers -k 'mlflow or wandb_offline'"
    said = run(command, ROOT, PYTHONPATH=str(packages))
    assert "2 passed" in said
