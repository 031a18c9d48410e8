"""The JSON schema of a certificate, generated from its records.

python -m gguf_verify.certificates.schema     # writes schemas/certificate.schema.json; a test checks it is up to date
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from .records import PREDICATE_TYPE, STATEMENT_TYPE, VERSION, Statement

PATH = Path(__file__).parent / "schemas" / "certificate.schema.json"


def certificate_schema() -> dict[str, Any]:
    """Return the schema, JSON Schema 2020-12."""
    (_, components) = msgspec.json.schema_components([Statement], ref_template="#/$defs/{name}")
    defs: dict[str, Any] = {name: _closed(component) for name, component in components.items()}
    statement = defs.pop("Statement")
    statement["properties"]["_type"] = {"const": STATEMENT_TYPE}
    statement["properties"]["predicateType"] = {"const": PREDICATE_TYPE}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema", "$id": PREDICATE_TYPE, **statement,
        "title": f"A certificate of gguf-verify, version {VERSION}: the records of gguf_verify.certificates.records",
        "$defs": defs,
    }  # fmt: skip


def _closed(schema: Any) -> Any:
    """Require every field, except those that may be unset, and forbid others."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _closed(value) for key, value in schema.items() if key != "default"}
    if isinstance(made.get("description"), str):
        made["description"] = " ".join(made["description"].split("\n\n")[0].split())
    if "properties" in schema:
        never_unset = {*schema.get("required", ()), *(n for n, of in schema["properties"].items() if "default" in of)}
        made |= {"required": sorted(never_unset), "additionalProperties": False}
    return made


def text() -> str:
    """Return the content of the schema file."""
    return json.dumps(certificate_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
