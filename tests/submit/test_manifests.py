"""The objects for Kubernetes: what they ask for, and that the schemas of Kubernetes take them."""

import pytest

from holdfast.errors import HoldfastError
from holdfast.submit.kubernetes import manifests
from holdfast.submit.request import SubmitRequest

GIVEN = (("image", "me/train:1"), ("claim", "lake"))


def make_request(**fields: object) -> SubmitRequest:
    known = {
        "name": "Big_Run",
        "num_nodes": 4,
        "num_spare_hosts": 1,
        "devices_per_node": 8,
        "is_cuda": True,
        "program": ("python", "-m", "holdfast"),
        "job_file": "job.toml",
        "job_text": "[job]\nsteps = 4\n",
        "folder": "/home",
        "grace_s": 60.0,
        "view_port": 8080,
        "options": GIVEN,
    }
    return SubmitRequest(**(known | fields))


def by_kind(request: SubmitRequest) -> dict:
    found = {}
    for item in manifests(request)["items"]:
        part = item["metadata"]["labels"].get("app.kubernetes.io/component", "")
        found[f"{item['kind']} {part}".strip()] = item
    return found


def pod_of(item: dict) -> dict:
    return item["spec"]["template"]["spec"]


def test_one_agent_per_host():
    agents = by_kind(make_request())["Job agent"]
    spec = agents["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 5, 5)
    (apart,) = pod_of(agents)["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    assert apart["labelSelector"]["matchLabels"].items() <= (
        spec["template"]["metadata"]["labels"].items()
    )
    (container,) = pod_of(agents)["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert "agent-$(HOLDFAST_HOST_INDEX)" in container["command"]
    assert {"name": "memory", "mountPath": "/dev/shm"} in container["volumeMounts"]


def test_there_is_time_for_the_last_checkpoint():
    for part in ("Job agent", "Job launcher"):
        pod = pod_of(by_kind(make_request())[part])
        assert pod["terminationGracePeriodSeconds"] > 60


def test_the_launcher_says_when_it_is_not_tried_again():
    spec = by_kind(make_request())["Job launcher"]["spec"]
    fail, ignore = spec["podFailurePolicy"]["rules"]
    assert fail["onExitCodes"]["values"] == [2, 93]
    assert ignore["onPodConditions"] == [{"type": "DisruptionTarget"}]
    assert pod_of(by_kind(make_request())["Job launcher"])["restartPolicy"] == "Never"


def test_probes_where_the_job_serves_its_page():
    (container,) = pod_of(by_kind(make_request())["Job launcher"])["containers"]
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": 8080}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": 8080}
    (container,) = pod_of(by_kind(make_request(view_port=0))["Job launcher"])["containers"]
    assert "livenessProbe" not in container


def test_the_service_is_headless_and_the_budget_is_for_agents():
    found = by_kind(make_request())
    assert found["Service"]["spec"]["clusterIP"] == "None"
    assert pod_of(found["Job agent"])["subdomain"] == found["Service"]["metadata"]["name"]
    labels = found["Job agent"]["spec"]["template"]["metadata"]["labels"]
    budget = found["PodDisruptionBudget"]["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ((), "needs to be told the image"),
        ((("image", "x"),), "needs to be told the claim"),
        ((*GIVEN, ("partition", "x")), "nothing else"),
    ],
)
def test_what_is_refused(options, why):
    with pytest.raises(HoldfastError, match=why):
        manifests(make_request(options=options))


@pytest.mark.kubernetes
def test_the_schemas_take_them():
    schemas = pytest.importorskip("kubernetes_validate", reason="make kubernetes installs it")
    version = schemas.latest_version()
    for request in (make_request(), make_request(is_cuda=False, view_port=0)):
        for item in manifests(request)["items"]:
            schemas.validate(item, version, strict=True)
    broken = by_kind(make_request())["Job agent"]
    broken["spec"]["completion"] = 3
    with pytest.raises(schemas.ValidationError):
        schemas.validate(broken, version, strict=True)
