"""The JSON schema of the report of a run, made from its records.

python -m gguf_verify.report.schema     # writes schemas/run.schema.json; a test fails if it is out of date
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import msgspec

from ..checks import Check
from ..results.failures import CULPRITS, MAX_HEX_BYTES
from ..results.report import SCHEMA_VERSION, Report, ReportVerdict
from ..results.rungs import MAX_FAILURES, RungVerdict

SCHEMAS = Path(__file__).parent / "schemas"
PATH = SCHEMAS / "run.schema.json"

_NUMBER = {
    "description": "a number, or one that is not finite as a string",
    "anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}],
}
#: Verdict of a run, exit code.
_EXIT_CODES: list[tuple[ReportVerdict, int]] = [
    ("verified", 0),
    ("verified on drawn data", 0),
    ("waived", 0),
    ("mismatch", 1),
    ("broken off", 3),
    ("not everything verified", 5),
    ("interrupted", 130),
    ("interrupted", 3),
]


#: Fields that may be unset, which are then not written.
_OPTIONAL = {"alignments", "comparison"}
#: What msgspec also says of a type and this schema does not: defaults are always written, records tell themselves apart
#: by their fields, and the names of keys are given by msgspec from its version 0.23 on only.
_OMITTED = {"default", "discriminator", "propertyNames"}


def run_schema() -> dict[str, Any]:
    """The schema of a run's report, JSON Schema 2020-12."""
    (_, components) = msgspec.json.schema_components([Report, Check], ref_template="#/$defs/{name}")
    defs: dict[str, Any] = {name: _closed(component) for name, component in components.items()}
    report, rung, failure = defs.pop("Report"), defs["RungResult"], defs["Failure"]
    _add(rung, "verdict", {"enum": list(get_args(RungVerdict))})
    for timed in (report, rung):
        timed["properties"]["seconds"] = {"type": "number", "minimum": 0}
    rung["properties"]["failures"]["maxItems"] = MAX_FAILURES
    rung["allOf"] = [
        {
            "if": {"properties": {"verdict": {"const": "passed"}}},
            "then": {
                "properties": {"n_failures": {"const": 0}, "unverified": {"maxItems": 0}, "fault": {"type": "null"}}
            },
        },
        {
            "if": {"properties": {"verdict": {"enum": ["failed", "waived"]}}},
            "then": {"properties": {"n_failures": {"minimum": 1}}},
        },
    ]
    digits = {"type": "string", "pattern": "^([0-9a-f]{2})*$", "maxLength": 2 * MAX_HEX_BYTES}
    for name in ("block_hex", "activation_hex"):
        failure["properties"][name] = {"anyOf": [digits, {"type": "null"}]}
    _add(report, "schema", {"const": SCHEMA_VERSION})
    _add(report, "verdict", {"enum": list(get_args(ReportVerdict))})
    _add(report, "checks", {"type": "array", "items": {"$ref": "#/$defs/Check"}})
    _add(report, "words", {"type": "string"})
    counts = {"type": "integer", "minimum": 1}
    names = {"enum": list(CULPRITS)}
    _add(report, "culprits", {"type": "object", "propertyNames": names, "additionalProperties": counts})
    _add(report, "exit_code", {"enum": sorted({code for _, code in _EXIT_CODES})})
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:gguf-verify:run:{SCHEMA_VERSION}",
        **report,
        "title": f"A run of gguf-verify, schema {SCHEMA_VERSION}: the records of gguf_verify.results",
        "oneOf": [
            {
                "properties": {
                    "verdict": {"const": verdict},
                    "exit_code": {"const": code},
                    "culprits": {"minProperties": 1} if code else {"maxProperties": 0},
                }
            }
            for verdict, code in _EXIT_CODES
        ],
        "$defs": {"number": _NUMBER, **defs},
    }


def _add(schema: dict[str, Any], name: str, what: dict[str, Any]) -> None:
    schema["properties"] = {name: what, **schema["properties"]}
    schema["required"] = sorted([*schema["required"], name])


def _closed(schema: Any) -> Any:
    """A report has every field of its records and no other, and its numbers need not be finite."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "number":
        return {"$ref": "#/$defs/number"}
    made = {key: _closed(value) for key, value in schema.items() if key not in _OMITTED}
    if isinstance(made.get("description"), str):
        made["description"] = " ".join(made["description"].split("\n\n")[0].split())
    if schema.get("type") == "integer":
        made.pop("format", None)
    if "properties" in schema:
        made |= {"required": sorted(made["properties"].keys() - _OPTIONAL), "additionalProperties": False}
    return made


def text(schema: dict[str, Any]) -> str:
    """The contents of the file of a schema."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(run_schema()), encoding="utf-8")
