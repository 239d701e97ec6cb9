"""The objects of a job under Kubernetes: an indexed Job of agents, a Job of the launcher, a
headless Service, a disruption budget, and the job file.

    agents      one pod per host, apart from each other (anti-affinity), with shared memory of their
                own for snapshots. A pod is known by its index, so its successor is the same node
    launcher    a pod whose end is the end of the job: 2 and 93 mean that it is not tried again, an
                eviction does not count as a failure. It only watches: when it is evicted, training
                goes on, and the next launcher takes it up
    claim       a volume that all pods can write to: the hosts meet there, and checkpoints go there

What is ended by Kubernetes gets SIGTERM: the launcher stops the job with a checkpoint within its
grace time, and agents stay so long.
"""

from collections.abc import Mapping
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.submit.request import SETTLE_S, SubmitRequest, agent_arguments
from holdfast.submit.slurm import EXIT_NO_REQUEUE

OPTIONS = {
    "image": "",
    "claim": "",
    "mount": "/shared",
    "namespace": "default",
    "memory": "8Gi",
    "shared_memory": "4Gi",
    "cpus": "4",
    "retries": "10",
    "gpu_resource": "nvidia.com/gpu",
}
"""Of `--with`, and what each is where it is not given; empty: it has to be."""
JOB_FOLDER = "/etc/holdfast"
INDEX = "batch.kubernetes.io/job-completion-index"
PROGRAM = ("python", "-m", "holdfast")


def manifests(request: SubmitRequest) -> dict[str, Any]:
    """One List, as `kubectl apply -f -` takes it."""
    options = options_of(request)
    objects = [
        _job_file(request, options),
        _service(request, options),
        _budget(request, options),
        _agents(request, options),
        _launcher(request, options),
    ]
    return {"apiVersion": "v1", "kind": "List", "items": objects}


def options_of(request: SubmitRequest) -> dict[str, str]:
    given = dict(request.options)
    for name, value in given.items():
        if name not in OPTIONS:
            raise HoldfastError(
                f"--with {name}={value}: Kubernetes is given {', '.join(OPTIONS)}, nothing else"
            )
    found = {**OPTIONS, **given}
    for name, value in found.items():
        if not value:
            raise HoldfastError(f"--with {name}=...: Kubernetes needs to be told the {name}")
    return found


def _name(request: SubmitRequest, part: str = "") -> str:
    """As Kubernetes allows it: lower case, and no other signs than `-`."""
    plain = "".join(c if c.isascii() and c.isalnum() else "-" for c in request.name.lower())
    return f"holdfast-{plain.strip('-')[:30]}" + (f"-{part}" if part else "")


def _metadata(request: SubmitRequest, options: Mapping[str, str], part: str = "") -> dict[str, Any]:
    return {
        "name": _name(request, part),
        "namespace": options["namespace"],
        "labels": _labels(request, part),
    }


def _labels(request: SubmitRequest, part: str = "") -> dict[str, str]:
    found = {"app.kubernetes.io/name": "holdfast", "app.kubernetes.io/instance": _name(request)}
    return {**found, "app.kubernetes.io/component": part} if part else found


def _job_file(request: SubmitRequest, options: Mapping[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(request, options),
        "data": {"job.toml": request.job_text},
    }


def _service(request: SubmitRequest, options: Mapping[str, str]) -> dict[str, Any]:
    """So that pods have names for each other, also before they are ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(request, options),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": _labels(request),
        },
    }


def _budget(request: SubmitRequest, options: Mapping[str, str]) -> dict[str, Any]:
    """Hosts are drained one after the other: each loss is made good before the next."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(request, options),
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": _labels(request, "agent")},
        },
    }


def _agents(request: SubmitRequest, options: Mapping[str, str]) -> dict[str, Any]:
    label = "agent-$(HOLDFAST_HOST_INDEX)"
    command = [*PROGRAM, "agent", "--join", _rendezvous(request, options), "--label", label]
    command += ["--folder", f"{_run_dir(request, options)}/hosts/{label}"]
    index = {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}}
    resources = {"cpu": options["cpus"], "memory": options["memory"]}
    if request.is_cuda:
        resources[options["gpu_resource"]] = str(request.devices_per_node)
    container = {
        **_container(request, options, [*command, *agent_arguments(request)]),
        "env": [{"name": "HOLDFAST_HOST_INDEX", "valueFrom": index}],
        "resources": {"requests": resources, "limits": resources},
    }
    apart = {
        "labelSelector": {"matchLabels": _labels(request, "agent")},
        "topologyKey": "kubernetes.io/hostname",
    }
    pod = {
        **_pod(request, options, container),
        "restartPolicy": "OnFailure",
        "affinity": {
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}
        },
    }
    retries = int(options["retries"])
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(request, options, "agent"),
        "spec": {
            "completionMode": "Indexed",
            "completions": request.num_hosts,
            "parallelism": request.num_hosts,
            "backoffLimit": retries * request.num_hosts,
            "template": {"metadata": {"labels": _labels(request, "agent")}, "spec": pod},
        },
    }


def _launcher(request: SubmitRequest, options: Mapping[str, str]) -> dict[str, Any]:
    places = ["--net.rendezvous", _rendezvous(request, options)]
    places += ["--job.run_dir", _run_dir(request, options)]
    command = [*PROGRAM, "run", f"{JOB_FOLDER}/job.toml", *request.settings, *places]
    container = _container(request, options, command)
    if request.view_port:
        container = {**container, **_probes(request.view_port)}
        container["command"] = [*command, "--view.host", "0.0.0.0"]
    ends = {
        "rules": [
            {
                "action": "FailJob",
                "onExitCodes": {"operator": "In", "values": [2, EXIT_NO_REQUEUE]},
            },
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
        ]
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(request, options, "launcher"),
        "spec": {
            "backoffLimit": int(options["retries"]),
            "podFailurePolicy": ends,
            "template": {
                "metadata": {"labels": _labels(request, "launcher")},
                "spec": {**_pod(request, options, container), "restartPolicy": "Never"},
            },
        },
    }


def _container(
    request: SubmitRequest, options: Mapping[str, str], command: list[str]
) -> dict[str, Any]:
    return {
        "name": "holdfast",
        "image": options["image"],
        "command": command,
        "workingDir": options["mount"],
        "volumeMounts": [
            {"name": "shared", "mountPath": options["mount"]},
            {"name": "memory", "mountPath": "/dev/shm"},
            {"name": "job", "mountPath": JOB_FOLDER, "readOnly": True},
        ],
    }


def _probes(port: int) -> dict[str, Any]:
    """The page of the job is served for others than its own host, too, then."""
    get = {"port": port}
    return {
        "ports": [{"name": "view", "containerPort": port}],
        "startupProbe": {"httpGet": {"path": "/healthz", **get}, "failureThreshold": 60},
        "livenessProbe": {"httpGet": {"path": "/healthz", **get}, "failureThreshold": 6},
        "readinessProbe": {"httpGet": {"path": "/readyz", **get}},
    }


def _pod(
    request: SubmitRequest, options: Mapping[str, str], container: dict[str, Any]
) -> dict[str, Any]:
    memory = {"medium": "Memory", "sizeLimit": options["shared_memory"]}
    return {
        "subdomain": _name(request),
        "terminationGracePeriodSeconds": round(request.leave_after_s + SETTLE_S),
        "containers": [container],
        "volumes": [
            {"name": "shared", "persistentVolumeClaim": {"claimName": options["claim"]}},
            {"name": "memory", "emptyDir": memory},
            {"name": "job", "configMap": {"name": _name(request)}},
        ],
    }


def _run_dir(request: SubmitRequest, options: Mapping[str, str]) -> str:
    return f"{options['mount']}/runs/{_name(request)}"


def _rendezvous(request: SubmitRequest, options: Mapping[str, str]) -> str:
    is_etcd = request.rendezvous.startswith("etcd:")
    return request.rendezvous if is_etcd else f"dir:{_run_dir(request, options)}"
