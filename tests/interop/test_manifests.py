"""The manifests for Kubernetes on the language model's page: nothing in them is unknown to the models of their kinds.

Those of Kubeflow: `kubeflow_trainer_api` has JobSet and Kubernetes' own types, `kubeflow.training` has PyTorchJob.
"""

import copy
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from kubeflow.training.api_client import ApiClient
from kubeflow_trainer_api import models

PAGE = Path(__file__).resolve().parents[2] / "docs" / "language-model.md"
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
MANIFESTS = {manifest["kind"]: manifest for manifest in map(yaml.safe_load, BLOCKS)}


def known(manifest: dict[str, Any]) -> dict[str, Any]:
    """The part of a manifest that the models know; they refuse a value of another type, and leave unknown names out."""
    if manifest["kind"] == "JobSet":
        return models.JobsetV1alpha2JobSet.from_dict(manifest).to_dict()
    client = ApiClient()
    job = client.deserialize(SimpleNamespace(data=json.dumps(manifest)), "KubeflowOrgV1PyTorchJob")
    found = client.sanitize_for_serialization(job)
    for replicas in found["spec"]["pytorchReplicaSpecs"].values():
        # Kubernetes' types are checked more strictly by the other package.
        replicas["template"] = models.IoK8sApiCoreV1PodTemplateSpec.from_dict(replicas["template"]).to_dict()
    return found


@pytest.mark.parametrize("kind", ["PyTorchJob", "JobSet"])
def test_a_manifest_has_known_fields_alone(kind: str) -> None:
    assert known(MANIFESTS[kind]) == MANIFESTS[kind]


def nested(tree: Any) -> list[dict[str, Any]]:
    """Every mapping in a manifest."""
    children = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return ([tree] if isinstance(tree, dict) else []) + [each for child in children for each in nested(child)]


@pytest.mark.parametrize("kind", ["PyTorchJob", "JobSet"])
def test_a_misspelt_field_is_noticed_anywhere(kind: str) -> None:
    """But in mappings whose names are free: limits of resources, and replicas by their role."""
    free = ({"nvidia.com/gpu"}, {"Worker"})
    count = 0
    for at, mapping in enumerate(nested(MANIFESTS[kind])):
        if set(mapping) in free:
            continue
        manifest = copy.deepcopy(MANIFESTS[kind])
        nested(manifest)[at]["misspelt"] = "2"
        assert known(manifest) != manifest, mapping
        count += 1
    assert count > 10
    broken = copy.deepcopy(MANIFESTS[kind])
    (mapping,) = (each for each in nested(broken) if "replicas" in each or "completions" in each)
    mapping["replicas" if kind == "PyTorchJob" else "completions"] = "two"
    with pytest.raises(ValueError, match="two"):
        known(broken)
