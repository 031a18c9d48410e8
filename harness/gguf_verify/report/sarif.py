"""SARIF 2.1.0, which code scanning of GitHub, GitLab and editors read: findings of audits, failures of runs.

A result has a rule, a level, a message, and where it is about bytes of a file, that file and a region: `byteOffset`,
`byteLength`. A finding's rule is its id, of which docs/findings.md says cause and cure; a run's rules are the rungs.
`partialFingerprints` tell a result in one file from another one when the file moves, grows or is rewritten: they are
made of rule, tensor or key, and place in the tensor, never of absolute offsets. Of a graph they are made of the node,
its operation and device.
(OASIS, Static Analysis Results Interchange Format 2.1.0, errata 01. Its `helpUri` must be absolute, so `help` names the
page.)
"""

from __future__ import annotations

import hashlib
import json
from typing import Any
from urllib.parse import quote

from ..gguf.rules import RULES
from ..support.text import printable, sentence
from ..support.version import project_version
from .digest import Digest, Finding

VERSION = "2.1.0"
SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_FINDINGS_PAGE, _CODES_PAGE = "docs/findings.md", "docs/exit-codes.md"

Json = dict[str, Any]


def render(digest: Digest) -> str:
    """The log of one run of the tool."""
    listed = [f for f in digest.findings if f.rule is not None]
    index = {rule: i for i, rule in enumerate(sorted({f.rule for f in listed if f.rule is not None}))}
    driver = {"name": "gguf-verify", "version": project_version(), "rules": [_rule(id) for id in index]}
    invocation: Json = {"executionSuccessful": digest.exit_code in (0, 1, 4), "exitCode": digest.exit_code}
    if digest.command:
        invocation["commandLine"] = printable(digest.command)
    if notifications := [{"level": "note", "message": {"text": note}} for note in digest.notes]:
        invocation["toolExecutionNotifications"] = notifications
    results = [{**_result(f), "ruleIndex": index[f.rule or ""]} for f in listed]
    log = {
        "$schema": SCHEMA,
        "version": VERSION,
        "runs": [{"tool": {"driver": driver}, "invocations": [invocation], "results": results}],
    }
    return json.dumps(log, indent=1, allow_nan=False) + "\n"


def _result(f: Finding) -> Json:
    physical: Json = {"artifactLocation": {"uri": quote(f.path.encode("utf-8", "surrogateescape"))}}
    if f.region is not None:
        start, stop = f.region
        physical["region"] = {"byteOffset": start, "byteLength": max(stop - start, 0)}
    location: Json = {"physicalLocation": physical}
    if f.owner:
        location["logicalLocations"] = [{"name": printable(f.owner, 200), "kind": "member"}]
    identity = "\0".join((f.rule or "", f.owner, f.place)).encode("utf-8", "surrogateescape")
    made: Json = {
        "ruleId": f.rule,
        "level": f.level,
        "message": {"text": f.message + f.numbers + f.details},
        "locations": [location],
        "partialFingerprints": {"ggufVerify/v1": hashlib.sha256(identity).hexdigest()},
    }
    if f.properties:
        made["properties"] = dict(f.properties)
    if f.waived:
        made["suppressions"] = [{"kind": "external", "justification": "waived"}]
    return made


_BY_ID = {rule.id: rule for rule in RULES.values()}
#: Ends of the names of rules that are not findings of a file → level, meaning.
_OTHERS = {
    "not-verified": ("warning", "A check could not be made."),
    "mismatch": ("error", "An output of the kernel or llama.cpp, or the file, is incorrect."),
    "broken-off": ("error", "The check could not be finished."),
    "not-opened": ("error", "The file could not be opened."),
    "code-not-run": ("warning", "Code of the kernel was not executed by any call."),
    "file-changed": ("error", "The file was changed while it was checked."),
    "other-bits": (
        "note",
        "A token's bits depend on how many tokens are computed with it, or on its place among them.",
    ),
}


def _rule(id: str) -> Json:
    rule = _BY_ID.get(id)
    if rule is None:
        level, short = next(meaning for end, meaning in _OTHERS.items() if id.endswith(end))
        help_text = f"See {_CODES_PAGE}."
    else:
        level, short = "error" if rule.effect == "refuse" else rule.effect, f"{sentence(rule.why)}."
        help_text = f"Cause: {rule.cause} Cure: {rule.cure} See {_FINDINGS_PAGE}#{rule.id.lower()}."
    return {
        "id": id,
        "name": id,
        "shortDescription": {"text": short},
        "help": {"text": help_text},
        "defaultConfiguration": {"level": level},
    }
