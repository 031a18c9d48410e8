"""The JSON schema of the report of a night, made from its records.

python -m gguf_verify_nightly.report.schema     # writes schemas/nightly.schema.json; a test fails if it is out of date

It contains the schema of a run, so a validator needs one file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gguf_verify.report.schema import run_schema, text

from ..records import Outcome
from ..summary import KINDS, NOT_RUN, WORDS

PATH = Path(__file__).parent / "schemas" / "nightly.schema.json"


def nightly_schema() -> dict[str, Any]:
    """The schema of a night's report: the file's, with the outcomes, the lists and the run's schema of today."""

    schema: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    word = {"type": "string", "pattern": f"^({'|'.join(WORDS)})$"}
    schema["properties"]["verdict"]["properties"]["word"] = word
    schema["properties"]["history"]["items"]["properties"]["verdict"] = word
    compared = schema["properties"]["comparison"]["anyOf"][0]
    lists = {kind.name: {"$ref": "#/$defs/changes"} for kind in KINDS}
    compared["properties"] = {"against": {"type": "string"}, **lists}
    compared["required"] = sorted(compared["properties"])
    outcomes = [outcome.value for outcome in Outcome]
    schema["$defs"]["cell"]["properties"]["outcome"] = {"enum": outcomes}
    schema["$defs"]["outcomes"]["propertyNames"] = {"enum": [*outcomes, NOT_RUN]}
    schema["$defs"]["run"] = run_schema()
    return schema


if __name__ == "__main__":
    PATH.write_text(text(nightly_schema()), encoding="utf-8")
