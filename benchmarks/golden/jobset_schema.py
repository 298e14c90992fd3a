"""Records the schema of JobSet, the Kubernetes resource in launch/gke.sh.

    python -m benchmarks.golden.jobset_schema \\
        JOBSET/config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml

tests/launch/test_scripts.py checks it. JobSet is under the Apache License 2.0, as is this excerpt
of it: the OpenAPI schema of version v1alpha2, with the schemas of Job and Pod that it contains,
without descriptions and defaults.
"""

import sys
from pathlib import Path
from typing import Any

import yaml

from benchmarks.golden.recipe import save_json

VERSION = "v1alpha2"


def json_schema(node: dict[str, Any]) -> dict[str, Any]:
    """Converts a schema for a validator of JSON Schema.

    Unknown fields are errors, as for `kubectl apply` (field validation "Strict"), unless the
    resource preserves them.
    """
    schema = {}
    for key, value in node.items():
        if key in ("description", "default") or key.startswith("x-kubernetes-"):
            continue
        if key == "properties":
            value = {name: json_schema(entry) for name, entry in value.items()}
        elif key in ("items", "additionalProperties") and isinstance(value, dict):
            value = json_schema(value)
        elif key in ("anyOf", "allOf", "oneOf"):
            value = [json_schema(entry) for entry in value]
        schema[key] = value
    if "properties" in schema and not node.get("x-kubernetes-preserve-unknown-fields"):
        schema["additionalProperties"] = False
    return schema


if __name__ == "__main__":
    crd = yaml.safe_load(Path(sys.argv[1]).read_text())
    (version,) = [entry for entry in crd["spec"]["versions"] if entry["name"] == VERSION]
    save_json("jobset_schema.json.gz", json_schema(version["schema"]["openAPIV3Schema"]))
