#!/usr/bin/env python3
"""Cuts from KServe's definitions what the manifests in runtime/serve/deploy/kserve use, and checks those by all of it.

    git clone --depth 1 https://github.com/kserve/kserve
    pip install pyyaml jsonschema
    python3 runtime/serve/tests/it/kserve/cut.py kserve

The definitions have 39,000 lines and more; tests/it/deploy.rs needs what the manifests' fields may be, and which fields have
to be there. So a field that is new in a manifest is unknown to that test until this has been run again.
"""

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import yaml

HERE = Path(__file__).parent
MANIFESTS = HERE.parents[2] / "deploy/kserve"
ROWS = [
    ("serving-runtime", "serving.kserve.io_servingruntimes.yaml"),
    ("inference-service", "serving.kserve.io_inferenceservices.yaml"),
]
# What stands beside `properties` and `items` in a schema and says something about values.
KEPT = [
    "type", "required", "enum", "pattern", "format", "minimum", "maximum", "minItems", "maxItems", "minLength", "maxLength",
    "additionalProperties", "x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields",
]


def strict(schema):
    """The API server refuses (or drops) fields that a schema does not name; jsonschema does if it is told."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        closed.setdefault("additionalProperties", False)
    return closed


def cut(schema, value):
    """The part of a schema that speaks of a value."""
    small = {key: schema[key] for key in KEPT if key in schema}
    if isinstance(value, dict) and "properties" in schema:
        small["properties"] = {key: cut(schema["properties"][key], value[key]) for key in sorted(value)}
    if isinstance(value, list) and "items" in schema:
        merged = {}
        for one in value:
            merge(merged, cut(schema["items"], one))
        small["items"] = merged
    return small


def merge(into, other):
    for key, value in other.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = value


def main():
    kserve = Path(sys.argv[1])
    git = lambda *args: subprocess.check_output(["git", "-C", kserve, *args], text=True)
    commit = git("rev-parse", "HEAD").strip()
    for name, file in ROWS:
        path = f"config/crd/full/{file}"
        definition = yaml.load(git("show", f"HEAD:{path}"), Loader=yaml.CSafeLoader)
        manifest = yaml.safe_load((MANIFESTS / f"{name}.yaml").read_text())
        group, version = manifest["apiVersion"].split("/")
        assert definition["spec"]["group"] == group and definition["spec"]["names"]["kind"] == manifest["kind"]
        [schema] = [
            one["schema"]["openAPIV3Schema"] for one in definition["spec"]["versions"] if one["name"] == version
        ]
        jsonschema.Draft202012Validator(strict(schema)).validate(manifest)
        print(f"{name}.yaml is right by {path}")
        small = {
            "description": f"Cut by cut.py from {path} of https://github.com/kserve/kserve at {commit}; "
            "Copyright The KServe Authors, Apache License 2.0 (LICENSE-APACHE)",
            **cut(schema, manifest),
        }
        (HERE / f"{name}.json").write_text(json.dumps(small, indent=1) + "\n")


if __name__ == "__main__":
    main()
