"""The registry: a page and a feed of the certificates in a folder.

Every `*.json` in the folder must be a certificate. A signature `NAME.json.sig` beside it must be a good one by a signer
in the folder's `allowed_signers`; a certificate without one is listed as not signed. Text from certificates is escaped.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..support.text import printable
from . import signing
from .read import NotACertificate, read_certificate
from .records import Predicate

#: Version of the feed, raised whenever a field changes its meaning or is removed.
VERSION = 1
SIGNERS = "allowed_signers"


@dataclass(frozen=True)
class Entry:
    """A certificate in the registry.

    Args:
        certificate, sha256: the file's name and digest.
        model, kernel: names; `kernel_sha256` is that of the kernel's first file, `model_sha256` those of the parts.
        engine: the kernel's origin: its folder or file, or "gguf-verify" for shipped kernels.
        device: where the kernel ran.
        verdict: in words.
        exit_code: of the run.
        envelope: type → the tokens, rows and columns, other than the model's own, at which the kernel was correct.
        left_out: parts of a whole verification that were not requested.
        finished: RFC 3339, UTC.
        project: version of gguf-verify; `llama_cpp` that of the reference.
        signed_by: the signer, or "" if not signed.
    """

    certificate: str
    sha256: str
    engine: str
    kernel: str
    kernel_sha256: str
    model: str
    model_sha256: tuple[str, ...]
    device: str
    verdict: str
    exit_code: int
    envelope: dict[str, dict[str, str]]
    left_out: tuple[str, ...]
    finished: str
    project: str
    llama_cpp: str
    signed_by: str


def entries(folder: Path) -> list[Entry]:
    """Return the entries, newest first. Raises HarnessError, naming the file, for an invalid certificate, a bad
    signature, or a signature without its certificate."""
    found = []
    for path in sorted(folder.glob("*.json")):
        statement, content = read_certificate(path)
        digests = {subject.name: subject.digest.sha256 for subject in statement.subject}
        signature, signer = signing.signature_path(path), ""
        if signature.exists():
            checked = signing.verify(content, signature, folder / SIGNERS)
            if not checked.good:
                raise NotACertificate(f"{path.name}: its signature is bad: {checked.why}")
            signer = checked.signer
        found.append(_entry(path, content, statement.predicate, digests, signer))
    for signature in folder.glob("*.sig"):
        if not signature.with_suffix("").is_file():
            raise NotACertificate(f"{signature.name} has no certificate beside it")
    return sorted(found, key=lambda entry: (entry.finished, entry.certificate), reverse=True)


def _entry(path: Path, content: bytes, said: Predicate, digests: dict[str, str], signer: str) -> Entry:
    file, named = said.kernel.name.rpartition(":")[0], said.kernel.files
    return Entry(
        certificate=path.name,
        sha256=hashlib.sha256(content).hexdigest(),
        engine="gguf-verify" if said.kernel.shipped else file.partition("/")[0],
        kernel=said.kernel.name,
        kernel_sha256="" if said.kernel.shipped or not named else digests[named[0]],
        model=said.model.files[0],
        model_sha256=tuple(digests[name] for name in said.model.files),
        device=said.host.words + ("" if said.host.name else f", {said.system.machine}"),
        verdict=said.words,
        exit_code=said.exit_code,
        envelope={e.type: {"M": e.tokens, "N": e.rows, "K": e.columns} for e in said.envelope if e.under_test},
        left_out=said.asked.left_out,
        finished=said.finished,
        project=said.project.version,
        llama_cpp=said.reference.llama_cpp,
        signed_by=signer,
    )


def feed(found: list[Entry]) -> str:
    """Return the JSON feed: {"schema", "entries": [the fields of `Entry`]}."""
    made: dict[str, Any] = {"schema": VERSION, "entries": [asdict(entry) for entry in found]}
    return json.dumps(made, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


_HEAD = (
    "verdict", "kernel", "engine", "model", "device", "holds for", "gguf-verify, llama.cpp", "date", "signed by",
    "certificate",
)  # fmt: skip


def table(found: list[Entry], folder: str) -> Iterator[str]:
    """Yield the rows of a Markdown table, with links to the certificates in `folder`."""
    yield f"| {' | '.join(_HEAD)} |"
    yield "|---" * len(_HEAD) + "|"
    for entry in found:
        verdict = f"**{_cell(entry.verdict)}**" + (
            f" (without {_cell('; '.join(entry.left_out))})" if entry.left_out else ""
        )
        name = f"[{entry.sha256[:12]}]({folder}/{_link(entry.certificate)})"
        yield (
            "| "
            + " | ".join(
                (
                    verdict,
                    _cell(entry.kernel),
                    _cell(entry.engine),
                    _cell(entry.model),
                    _cell(entry.device),
                    _cell("; ".join(f"{kind}: {_holds(where)}" for kind, where in entry.envelope.items())) or "–",
                    f"{_cell(entry.project)}, {_cell(entry.llama_cpp)}",
                    entry.finished[:10],
                    _cell(entry.signed_by) or "not signed",
                    name,
                )
            )
            + " |"
        )


def _holds(where: dict[str, str]) -> str:
    """Shorten ranges to the first and the last number of each."""
    ends = {name: re.findall(r"\d+", spans) for name, spans in where.items()}
    return ", ".join(f"{name} {found[0]} to {found[-1]}" for name, found in ends.items() if found)


def _cell(text: str) -> str:
    """Escape text from a certificate for a Markdown table: no markup, HTML or link survives."""
    shown = html.escape(printable(text, 200))
    return "".join(f"&#{ord(c)};" if c in "\\`*_{}[]()#+!|~:@^$=" else c for c in shown)


def _link(name: str) -> str:
    """Check a file's name for use in a link: letters, digits, "-", "_" and ".". Raises NotACertificate."""
    if not all(c.isascii() and (c.isalnum() or c in "-_.") for c in name):
        raise NotACertificate(
            f"the name of a certificate may hold letters, digits, '-', '_' and '.' only: {printable(name, 80)}"
        )
    return name
