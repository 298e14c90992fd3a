"""Records the schema of JobSet, the Kubernetes resource in launch/gke.sh.

tests/launch/test_scripts.py checks it. To record it again:

    git clone --branch=v0.12.0 https://github.com/kubernetes-sigs/jobset ../jobset
    python -m tests.golden.record_jobset_schema \
        ../jobset/config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml

Recorded from JobSet v0.12.0 (2026-05-08), which is under the Apache License 2.0, as is this
excerpt of it: the OpenAPI schema of version v1alpha2, with the schemas of Job and Pod that
it contains, without descriptions and defaults.
"""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import yaml

GOLDEN = Path(__file__).parent / "jobset_schema.json.gz"
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


def main(path: str) -> None:
    crd = yaml.safe_load(Path(path).read_text())
    (version,) = [entry for entry in crd["spec"]["versions"] if entry["name"] == VERSION]
    text = json.dumps(json_schema(version["schema"]["openAPIV3Schema"]), sort_keys=True)
    # Without the time and the file name, the same schema gives the same file.
    GOLDEN.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main(sys.argv[1])
