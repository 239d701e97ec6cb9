"""A real Prometheus scrapes a real job that serves its own page, and the example rules fire.

Thresholds of minutes are divided, so that the test takes no hours; the expressions stay as they
are.
"""

import json
import re
import shutil
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

import pytest

from support.live_view import ROOT, holdfast

EXAMPLES = ROOT / "examples" / "monitoring"
SHORTER = 600
"""How many times shorter ages in the rules are here."""
LIMIT_S = 180.0
EXPECTED = {"HoldfastWorkerHung", "HoldfastSnapshotOld", "HoldfastCrashLoop"}
JOB = """
[job]
name = "scraped"
steps = 100000
run_dir = "run"
threads = 1

[data]
rows = 1
seq_len = 16
micro_batches = 4

[parallel]
replicas = 3
devices_per_node = 1

[recovery]
hang_floor_ms = 1500
max_restarts = 100

[snapshot]
every = 200
max_cost = 0.0

[view]
port = {port}
control = true

[[faults]]
kind = "SIGSTOP"
target = "n1.g0"
at_step = 60

[[faults]]
kind = "SIGKILL"
target = "n2.g0"
mean_time_s = 3.0
"""
CONFIG = """
global: {{ scrape_interval: 500ms, evaluation_interval: 500ms }}
rule_files: [alerts.yml]
scrape_configs:
  - job_name: holdfast
    static_configs:
      - targets: ["127.0.0.1:{port}"]
"""

pytestmark = [
    pytest.mark.monitoring,
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed"),
]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as reply:
        return reply.read()


def wait_for(found, what: str):
    """Asked again and again until it is something."""
    end = monotonic() + LIMIT_S
    while True:
        try:
            if value := found():
                return value
        except (urllib.error.URLError, ConnectionError):
            pass
        assert monotonic() < end, f"no {what} within {LIMIT_S:g} s"
        sleep(0.2)


@contextmanager
def ended(process):
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def shorter_rules() -> str:
    rules = (EXAMPLES / "alerts.yml").read_text()
    rules = re.sub(r"(?<=_age_seconds > )\d+", lambda age: f"{int(age[0]) / SHORTER:g}", rules)
    return re.sub(r"for: \d+m", "for: 1s", rules)


def prometheus(folder: Path, port: int):
    flags = [f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    flags += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
    return subprocess.Popen(["prometheus", *flags], cwd=folder)


def firing(port: int) -> set[str]:
    alerts = json.loads(get(f"http://127.0.0.1:{port}/api/v1/alerts"))["data"]["alerts"]
    return {a["labels"]["alertname"] for a in alerts if a["state"] == "firing"}


def query(port: int, expression: str) -> float:
    url = f"http://127.0.0.1:{port}/api/v1/query?query={expression}"
    return float(json.loads(get(url))["data"]["result"][0]["value"][1])


def test_rules_fire_for_a_real_job(tmp_path):
    page, server = free_port(), free_port()
    (tmp_path / "job.toml").write_text(JOB.format(port=page))
    (tmp_path / "prometheus.yml").write_text(CONFIG.format(port=page))
    (tmp_path / "alerts.yml").write_text(shorter_rules())
    checked = ["promtool", "check", "config", "prometheus.yml"]
    subprocess.run(checked, cwd=tmp_path, check=True, capture_output=True)
    with (
        ended(holdfast("run", "job.toml", "--quiet", cwd=tmp_path)) as job,
        ended(prometheus(tmp_path, server)),
    ):
        url = f"http://127.0.0.1:{page}"
        wait_for(lambda: get(f"{url}/readyz"), "job that trains")
        seen: set[str] = set()

        def all_fired() -> bool:
            assert job.poll() is None, "the job has ended"
            seen.update(firing(server))
            return seen >= EXPECTED

        wait_for(all_fired, f"alert of each of {sorted(EXPECTED)}")
        print(f"fired: {', '.join(sorted(seen))}")
        assert query(server, "up") == 1
        assert query(server, "holdfast_steps_total") > 60
        metrics = get(f"{url}/metrics")
        subprocess.run(["promtool", "check", "metrics"], input=metrics, check=True)
        stop_it(url, (tmp_path / "run" / "secret").read_text())
        assert job.wait(60) == 128 + signal.SIGTERM
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["outcome"] == "stopped"


def stop_it(url: str, secret: str) -> None:
    """From the page, with the job's secret, and not without."""
    stop = urllib.request.Request(f"{url}/api/stop", data=b"{}", method="POST")
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(stop, timeout=10)
    stop.add_header("Authorization", f"Bearer {secret}")
    with urllib.request.urlopen(stop, timeout=10) as reply:
        assert b"stopping" in reply.read()
