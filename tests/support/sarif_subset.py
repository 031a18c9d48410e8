"""What SARIF 2.1.0 requires of the objects that this project writes, as a JSON schema: a subset of the standard's own
(sarif-schema-2.1.0.json), closed, so that a property that the standard does not know is an error here, too."""

from __future__ import annotations

from typing import Any


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


_TEXT = {"type": "string"}
_MESSAGE = _object(["text"], text={"type": "string", "minLength": 1})
_LEVEL = {"enum": ["none", "note", "warning", "error"]}
_INDEX = {"type": "integer", "minimum": 0}
_REGION = {**_object([], byteOffset=_INDEX, byteLength=_INDEX), "minProperties": 1}
_LOCATION = _object(
    [],
    physicalLocation=_object(
        ["artifactLocation"], artifactLocation=_object(["uri"], uri={"type": "string", "format": "uri-reference"}),
        region=_REGION,
    ),
    logicalLocations={"type": "array", "uniqueItems": True, "items": _object([], name=_TEXT, kind=_TEXT)},
)  # fmt: skip
_RESULT = _object(
    ["message", "ruleId", "ruleIndex", "level", "locations", "partialFingerprints"],
    ruleId=_TEXT, ruleIndex=_INDEX, level=_LEVEL, message=_MESSAGE, locations={"type": "array", "items": _LOCATION},
    partialFingerprints={"type": "object", "additionalProperties": _TEXT}, properties={"type": "object"},
)  # fmt: skip
_RULE = _object(
    ["id"],
    id=_TEXT,
    name=_TEXT,
    shortDescription=_MESSAGE,
    help=_MESSAGE,
    defaultConfiguration=_object([], level=_LEVEL),
)
_DRIVER = _object(["name"], name=_TEXT, version=_TEXT, rules={"type": "array", "uniqueItems": True, "items": _RULE})
_RUN = _object(
    ["tool", "results"], tool=_object(["driver"], driver=_DRIVER),
    invocations={"type": "array", "items": _object(
        ["executionSuccessful"], executionSuccessful={"type": "boolean"}, exitCode={"type": "integer"},
        commandLine=_TEXT,
        toolExecutionNotifications={"type": "array", "items": _object(["message"], level=_LEVEL, message=_MESSAGE)},
    )},
    results={"type": "array", "items": _RESULT},
)  # fmt: skip

SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    **_object(
        ["version", "runs"], version={"const": "2.1.0"}, runs={"type": "array", "minItems": 1, "items": _RUN},
        **{"$schema": {"type": "string", "format": "uri"}},
    ),
}  # fmt: skip
