"""A real job, followed over the network by a real `holdfast view`."""

import urllib.error
import urllib.request

import pytest

from support.live_view import listen, viewed_job

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(120)]


def get(url):
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.read().decode()


def test_a_job_is_followed_to_its_end(tmp_path):
    states, steps, incidents = [], [], {}
    with viewed_job(tmp_path, steps=40) as url:
        for name, data in listen(url):
            if name == "end":
                break
            states.append(data["run"]["state"])
            steps += data["points"]["step"]
            incidents |= {incident["number"]: incident for incident in data["incidents"]}
        metrics = get(f"{url}metrics")
        with pytest.raises(urllib.error.HTTPError, match="503"):
            get(f"{url}readyz")
        assert get(f"{url}healthz") == '{"status":"ok"}'
    assert states[-1] == "finished"
    assert set(states[:-1]) <= {"starting", "training", "recovering"}
    assert steps == list(range(40))
    (incident,) = incidents.values()
    assert incident["title"] == "n1.g0 lost (killed)"
    assert incident["faults"] == ["SIGKILL n1.g0"]
    assert "holdfast_snapshot_step" in metrics
    assert 'holdfast_failures_total{kind="killed"} 1.0' in metrics
