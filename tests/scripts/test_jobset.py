"""The manifests for Google Kubernetes Engine: what must agree in them does."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from t5x_lite.config import load

ROOT = Path(__file__).resolve().parents[2]
TPU = ROOT / "scripts" / "tpu"
MANIFESTS = {"jobset.yaml": 1, "jobset_slices.yaml": 2}


def manifest(name: str) -> dict[str, Any]:
    read = yaml.safe_load((TPU / name).read_text())
    assert (read["apiVersion"], read["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    return read


def slice_job(name: str) -> dict[str, Any]:
    (job,) = manifest(name)["spec"]["replicatedJobs"]
    return job


def chips(topology: str) -> int:
    return math.prod(int(length) for length in topology.split("x"))


@pytest.mark.parametrize(("name", "slices"), MANIFESTS.items())
def test_one_pod_for_each_host_of_each_slice(name, slices):
    job = slice_job(name)
    spec = job["template"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    topology = pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"]
    hosts, rest = divmod(chips(topology), container["resources"]["limits"]["google.com/tpu"])
    assert rest == 0
    assert job["replicas"] == slices
    assert spec["completions"] == spec["parallelism"] == hosts
    assert spec["completionMode"] == "Indexed"
    annotations = manifest(name)["metadata"]["annotations"]
    exclusive = annotations["alpha.jobset.sigs.k8s.io/exclusive-topology"]
    assert exclusive == "cloud.google.com/gke-nodepool"


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_failure_begins_all_again_but_bad_input_ends_them(name):
    policy = manifest(name)["spec"]["failurePolicy"]
    spec = slice_job(name)["template"]["spec"]
    pod = spec["template"]["spec"]
    assert policy["maxRestarts"] > 0
    assert policy["rules"] == [
        {"name": "badInput", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
    ]
    (rule,) = spec["podFailurePolicy"]["rules"]
    (container,) = pod["containers"]
    assert rule == {
        "action": "FailJob",
        "onExitCodes": {"containerName": container["name"], "operator": "In", "values": [2]},
    }
    assert (spec["backoffLimit"], pod["restartPolicy"]) == (0, "Never")
    assert pod["terminationGracePeriodSeconds"] >= 60


@pytest.mark.parametrize(("name", "slices"), MANIFESTS.items())
def test_the_command_is_one_of_ours(name, slices):
    (container,) = slice_job(name)["template"]["spec"]["template"]["spec"]["containers"]
    assert "command" not in container  # the image's entry point
    command, config, *options = container["args"]
    assert all(isinstance(word, str) for word in container["args"])
    assert command == "train"
    experiment = load(ROOT / config, options)
    assert experiment.mesh.replica == slices
    assert experiment.workdir.startswith("gs://")
    assert experiment.hosts.timeout == 3600
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"/data"}


def test_the_table_of_slices():
    rows = re.findall(
        r"^#   (v\S+)  +tpu-\S+  +ct\S+-(\d)t  +4(?: chips a host)?  +(\S+)  +(\d+)(?: hosts)?$",
        (TPU / "jobset.yaml").read_text(),
        re.MULTILINE,
    )
    assert [row[0] for row in rows] == ["v5e", "v5p", "v6e"]
    for _, per_host, topology, hosts in rows:
        assert chips(topology) == int(per_host) * int(hosts)
