"""The manifests of deploy/kubernetes: valid, without a key in them, and their commands run as nodes of a job.

kubernetes-validate has the schemas of built-in kinds; for others ``schemas`` has the fields that we use. No cluster
takes part.
"""

from __future__ import annotations

import copy
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.starting import ROOT
from tests.hosts.nodes import KEY, ending, free_port, start

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate")
jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema")
yaml = pytest.importorskip("yaml", reason="needs PyYAML")

FOLDER = ROOT / "deploy/kubernetes"
SCHEMAS = Path(__file__).with_name("schemas")
OWN = {path.stem: json.loads(path.read_text()) for path in SCHEMAS.glob("*.json")}
VERSION = "1.30.0"  # of the built-in kinds
TRAIN = (
    "import hvdlite as hvd, numpy as np; hvd.init(); "
    "print('sum', hvd.allreduce(np.ones(3), op=hvd.Sum)[0], 'of', hvd.size())"
)

Document = dict[str, Any]


def documents(name: str) -> list[Document]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


NAMES = sorted(path.name for path in FOLDER.glob("*.yaml"))
WITH_PODS = [name for name in NAMES if name != "networkpolicy.yaml"]
ALL = [(name, number) for name in NAMES for number in range(len(documents(name)))]


def check(document: Document) -> None:
    """Raises what the validators raise for a document that is not valid."""
    if schema := OWN.get(document["kind"]):
        jsonschema.Draft202012Validator(schema).validate(document)
        for embedded in embedded_in(document):
            kubernetes_validate.validate(embedded, VERSION, strict=True)
    else:
        kubernetes_validate.validate(document, VERSION, strict=True)


def embedded_in(document: Document) -> Iterator[Document]:
    """The templates of built-in kinds in a custom one, as objects of those kinds."""
    spec = document["spec"]
    for name, replicas in spec.get("mpiReplicaSpecs", {}).items():
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name.lower()}, **replicas["template"]}
    for job in spec.get("replicatedJobs", spec.get("template", {}).get("spec", {}).get("replicatedJobs", [])):
        metadata = {"name": job["name"], **job["template"].get("metadata", {})}
        yield {"apiVersion": "batch/v1", "kind": "Job", **job["template"], "metadata": metadata}


def pods_in(document: Document) -> list[Document]:
    """The specs of all pods of a document."""
    if document["kind"] == "Job":
        return [document["spec"]["template"]["spec"]]
    if document["kind"] not in OWN:
        return []
    embedded = list(embedded_in(document))
    return [each["spec"]["template"]["spec"] if each["kind"] == "Job" else each["spec"] for each in embedded]


@pytest.mark.parametrize(("name", "number"), ALL)
def test_a_manifest_is_valid(name: str, number: int) -> None:
    check(documents(name)[number])


BROKEN: dict[tuple[str, int], list[Callable[[Document], None]]] = {
    ("job.yaml", 0): [
        lambda service: service["spec"].update(clusterIp="None"),
        lambda service: service["spec"]["ports"][0].update(port="http"),
    ],
    ("job.yaml", 1): [
        lambda job: job["spec"].update(completionmode="Indexed"),
        lambda job: job["spec"].update(completions="two"),
        lambda job: pods_in(job)[0].update(subDomain="train"),
        lambda job: pods_in(job)[0]["containers"][0]["env"][0]["valueFrom"]["secretKeyRef"].pop("key"),
        lambda job: pods_in(job)[0]["containers"][0].pop("name"),
    ],
    ("jobset.yaml", 0): [
        lambda jobset: jobset.update(apiVersion="jobset.x-k8s.io/v1"),
        lambda jobset: jobset["spec"]["network"].update(enableDnsHostnames=True),
        lambda jobset: jobset["spec"]["failurePolicy"].update(maxRestarts="3"),
        lambda jobset: jobset["spec"]["replicatedJobs"][0].pop("template"),
        lambda jobset: pods_in(jobset)[0]["volumes"][0]["secret"].update(secret="train-key"),
    ],
    ("mpijob.yaml", 0): [
        lambda job: job["spec"].update(slotsPerWorker="2"),
        lambda job: job["spec"].update(launcherCreationPolicy="WhenWorkersAreReady"),
        lambda job: job["spec"]["mpiReplicaSpecs"].update(Workers={}),
        lambda job: job["spec"]["runPolicy"].update(cleanPodPolicy="Some"),
        lambda job: pods_in(job)[1]["containers"][0].update(command="/usr/sbin/sshd"),
    ],
    ("networkpolicy.yaml", 0): [
        lambda policy: policy["spec"].update(policyTypes="Ingress"),
        lambda policy: policy["spec"]["ingress"][0].update(sources=[]),
        lambda policy: policy["spec"].pop("podSelector"),
    ],
    ("trainer.yaml", 0): [
        lambda runtime: runtime["spec"]["mlPolicy"]["torch"].update(numProcPerNode="all"),
        lambda runtime: runtime["spec"]["template"]["spec"].pop("replicatedJobs"),
        lambda runtime: pods_in(runtime)[0]["containers"][0].update(commands=[]),
    ],
    ("trainer.yaml", 1): [
        lambda job: job["spec"].pop("runtimeRef"),
        lambda job: job["spec"]["trainer"].update(numNodes=0),
        lambda job: job["spec"]["runtimeRef"].update(kind="Runtime"),
    ],
}


@pytest.mark.parametrize(
    ("name", "number", "which"), [(*where, which) for where, each in BROKEN.items() for which in range(len(each))]
)
def test_a_broken_field_is_found(name: str, number: int, which: int) -> None:
    document = copy.deepcopy(documents(name)[number])
    BROKEN[name, number][which](document)
    with pytest.raises((kubernetes_validate.ValidationError, jsonschema.ValidationError)):
        check(document)


def test_every_manifest_has_fields_that_are_broken_and_every_schema_says_what_it_is_written_from() -> None:
    assert sorted(BROKEN) == ALL
    for kind, schema in OWN.items():
        version = schema["properties"]["apiVersion"]["const"]
        assert f"{kind} that deploy/kubernetes uses, written from the API version {version}" in schema["$comment"]


@pytest.mark.parametrize("name", NAMES)
def test_the_key_is_nowhere_in_a_manifest(name: str) -> None:
    assert not re.search(r"[0-9a-fA-F]{32}", (FOLDER / name).read_text())
    for document in documents(name):
        assert document["kind"] != "Secret"
        for pod in pods_in(document):
            for container in pod["containers"]:
                for variable in container.get("env", []):
                    assert variable.keys() == {"name", "valueFrom"}, variable["name"]
                    assert "secretKeyRef" in variable["valueFrom"]


@pytest.mark.parametrize("name", WITH_PODS)
def test_pods_run_as_a_user_who_is_not_root_with_shared_memory(name: str) -> None:
    pods = [pod for document in documents(name) for pod in pods_in(document)]
    assert pods
    for pod in pods:
        for container in pod["containers"]:
            user = {**pod.get("securityContext", {}), **container.get("securityContext", {})}["runAsUser"]
            assert user >= 1000
            mounts = {mount["mountPath"]: mount["name"] for mount in container.get("volumeMounts", [])}
            in_memory = {volume["name"] for volume in pod.get("volumes", []) if "emptyDir" in volume}
            assert container["name"] == "launcher" or mounts["/dev/shm"] in in_memory


@pytest.mark.parametrize("name", WITH_PODS)
def test_pods_keep_to_the_restricted_level_and_say_what_they_need(name: str) -> None:
    """The fields that the Pod Security level "restricted" asks for, and memory for the ranks and /dev/shm together."""
    for pod in (pod for document in documents(name) for pod in pods_in(document)):
        assert all(volume.keys() <= {"name", "emptyDir", "secret"} for volume in pod.get("volumes", []))
        for container in pod["containers"]:
            context = {**pod.get("securityContext", {}), **container["securityContext"]}
            assert context["runAsNonRoot"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["seccompProfile"] == {"type": "RuntimeDefault"}
            assert context["capabilities"]["drop"] == ["ALL"]
            assert set(context["capabilities"].get("add", [])) <= {"NET_BIND_SERVICE"}
            # The sshd of mpioperator/base does not start without.
            assert ("add" in context["capabilities"]) == (container["name"] == "worker")
            limit = container["resources"]["limits"]["memory"]
            assert limit == container["resources"]["requests"]["memory"]
            shared = [volume["emptyDir"]["sizeLimit"] for volume in pod.get("volumes", []) if "emptyDir" in volume]
            assert all(gibibytes(limit) >= 2 * gibibytes(size) for size in shared)


def gibibytes(text: str) -> int:
    number, unit = text[:-2], text[-2:]
    assert unit == "Gi", text
    return int(number)


def test_the_policy_admits_the_pods_of_the_job_to_each_other_and_nobody_else() -> None:
    (policy,) = documents("networkpolicy.yaml")
    service, _ = documents("job.yaml")
    pods = {"matchLabels": service["spec"]["selector"]}
    assert policy["spec"] == {
        "podSelector": pods,
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": pods}]}],  # at any port, for those of ranks differ
    }


def command_of(name: str) -> list[str]:
    """The command of the pods that are nodes."""
    (pod,) = (pod for document in documents(name) for pod in pods_in(document))
    return list(pod["containers"][0]["command"])


def environments(name: str, port: int) -> list[dict[str, str]]:
    """What Kubernetes, or Kubeflow Trainer, sets in each of two pods."""
    if name != "trainer.yaml":
        return [{"JOB_COMPLETION_INDEX": str(index)} for index in range(2)]
    both = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_MASTER_ADDR": "localhost", "PET_MASTER_PORT": str(port)}
    return [{**both, "PET_NODE_RANK": str(index)} for index in range(2)]


@pytest.mark.parametrize("name", ["job.yaml", "jobset.yaml", "trainer.yaml"])
def test_the_command_of_the_pods_trains_on_two_nodes(name: str, tmp_path: Path) -> None:
    """On this host: only names, paths and the number of ranks are others."""
    (tmp_path / "key").write_text(KEY)
    port, (program, *words) = free_port(), command_of(name)
    assert program == "hvdrun"
    here = {
        "train-0.train": f"localhost:{port}",
        "train-node-0-0.train": f"localhost:{port}",
        "/etc/train-key/key": str(tmp_path / "key"),
        "python": sys.executable,
        "train.py": str(tmp_path / "train.py"),
    }
    (tmp_path / "train.py").write_text(TRAIN)
    assert {"python", "train.py"} < set(words), shlex.join(words)
    command = [here.get(word, word) for word in words]
    pods = [start(command, environ) for environ in environments(name, port)]
    with ending(*pods):
        ended = [pod.rest() for pod in pods]
    assert [each.code for each in ended] == [0, 0], ended
    size = 2 if name == "trainer.yaml" else 4
    assert sorted(ended[0].out.splitlines()) == [f"[{rank}]<stdout>:sum {size}.0 of {size}" for rank in range(size)]


def test_the_names_of_node_0_are_those_that_the_objects_give_it() -> None:
    service, job = documents("job.yaml")
    name, subdomain = job["metadata"]["name"], pods_in(job)[0]["subdomain"]
    assert (service["metadata"]["name"], service["spec"]["clusterIP"]) == (subdomain, "None")
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert f"{name}-0.{subdomain}" in command_of("job.yaml")
    (jobset,) = documents("jobset.yaml")
    name, part = jobset["metadata"]["name"], jobset["spec"]["replicatedJobs"][0]["name"]
    assert f"{name}-{part}-0-0.{name}" in command_of("jobset.yaml")
    for spec in (job["spec"], jobset["spec"]["replicatedJobs"][0]["template"]["spec"]):
        assert spec["completionMode"] == "Indexed"
        assert str(spec["completions"]) == str(spec["parallelism"]) == _after("--nnodes", "job.yaml")


def _after(option: str, name: str) -> str:
    words = command_of(name)
    return words[words.index(option) + 1]
