"""Construction of a certificate from a report and the digests collected before and after its run."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from ..gguf.model import part_paths
from ..results.options import Options
from ..results.report import Report
from ..rungs.registry import rungs_for
from ..support.command_line import quoted
from ..support.errors import EXIT_INTERRUPTED, EnvironmentFault
from ..support.plain import plain
from .materials import Materials, shown_name
from .records import PREDICATE_TYPE, STATEMENT_TYPE, Statement, System


def certify(
    report: Report,
    before: Materials,
    after: Materials,
    rungs: tuple[str, ...] | None = None,
    given: str = "",
    finished: datetime | None = None,
) -> Statement:
    """Make the certificate of a run.

    Args:
        before, after: digests collected before and after the run.
        rungs: the requested rungs; None for all that apply to such a kernel.
        given: the kernel as it was typed.
        finished: when the run ended; None for now.

    Raises EnvironmentFault if there is nothing to certify: the run was interrupted or cut short by its time limit, a
    file changed during the run, the data were random, or only one call was made.
    """
    if report.ended_by in EXIT_INTERRUPTED:
        raise EnvironmentFault("no certificate: the run was interrupted")
    if report.ended_by == "budget":
        raise EnvironmentFault("no certificate: the time limit cut the run short, so only a random sample was checked")
    if report.drawn is not None:
        raise EnvironmentFault("no certificate: the run used random data, not a model")
    changed = report.fault or before.difference(after)
    if changed:
        raise EnvironmentFault(f"no certificate: {changed}")
    try:
        before = before.with_opened(report.environment.kernel.opened)
    except EnvironmentFault as fault:
        raise EnvironmentFault(f"no certificate: {fault}") from None
    if report.environment.options.only_call:
        raise EnvironmentFault("no certificate: only one call was made")
    e = report.environment
    model, sha256 = _model_names(e.file.path, len(e.file.sha256), before), e.file.sha256
    subjects = [*zip(model, sha256, strict=True), *before.kernel.items()]
    made: dict[str, Any] = {
        "_type": STATEMENT_TYPE, "predicateType": PREDICATE_TYPE,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in subjects],
        "predicate": {
            "verdict": report.verdict, "words": report.words, "exit_code": report.exit_code,
            "culprits": report.culprits,
            "finished": (finished or datetime.now(UTC)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "command": _command(
                report.command, {e.file.path: model[0], given: before.kernel_name, **_named(e.options)}
            ),
            "project": before.project,
            "model": {
                "files": model, "size": e.file.size, "architecture": e.file.architecture,
                "tensor_types": e.file.tensor_types,
            },
            "kernel": {
                "name": before.kernel_name, "shipped": before.shipped, "files": [*before.kernel],
                "packages": before.packages, "unknown": before.unknown, "definition": e.kernel.declared,
                "judged_by": e.kernel.judged_by, "order": e.kernel.order, "covers": e.kernel.covers,
                "beside": e.kernel.element_kernels,
                **({"system": before.system} if before.system else {}),
                **({"coverage": e.kernel.coverage} if e.kernel.coverage is not None else {}),
            },
            "host": e.host,
            "reference": {
                "llama_cpp_python": e.versions.llama_cpp_python, "llama_cpp": e.versions.llama_cpp,
                "ggml": e.versions.ggml, "build": e.versions.llama_build, "where": e.reference.where,
                "libraries": before.libraries,
            },
            "system": {
                "machine": e.kernel.element_host.device,
                **{name: getattr(e.versions, name) for name in System.__struct_fields__ if name != "machine"},
            },
            "sandbox": e.sandbox,
            "asked": _asked(report, rungs),
            "rungs": [
                {
                    "name": rung.name, "verdict": rung.verdict, "checked": rung.checked,
                    "not_checked": rung.not_checked, "unverified": len(rung.unverified) + (rung.fault is not None),
                    "failures": rung.n_failures, "waived": rung.n_waived,
                    "worst": {who: worst.utilisation for who, worst in rung.worst.items()},
                }
                for rung in report.rungs
            ],
            "not_climbed": report.not_climbed,
            "envelope": [envelope for rung in report.rungs for envelope in rung.envelopes],
            "waivers": report.waivers,
        },
    }  # fmt: skip
    return msgspec.convert(plain(made), Statement)


def _model_names(path: str, parts: int, materials: Materials) -> list[str]:
    """Return names of the model's files that collide with no file of the kernel."""
    found = [shown_name(part) for part in part_paths(Path(path), parts)]
    above = ""
    while any(f"{above}{name}" in materials.kernel for name in found):
        above += "model/"
    return [f"{above}{name}" for name in found]


def _command(command: str, names: dict[str, str]) -> str:
    """Replace file names in a command line by those of the certificate."""
    for given, name in names.items():
        if given and given != name:
            command = command.replace(quoted(given), quoted(name))
    return command


def _named(options: Options) -> dict[str, str]:
    """Map a kernel's further files, as typed, to names without this machine's folders."""
    declared = {options.declare: shown_name(options.declare)} if options.declare else {}
    return declared | {",".join(options.loads): ",".join(map(shown_name, options.loads))}


def _asked(report: Report, asked: tuple[str, ...] | None) -> dict[str, Any]:
    o, whole = report.environment.options, rungs_for(report.environment.kernel.computes)
    rungs = whole if asked is None else asked
    missing = [name for name in whole if name not in rungs]
    left_out = [f"rungs not requested: {', '.join(missing)}"] if missing else []
    left_out += report.shortened
    left_out += [
        f"{rung.sampled.what} of large matrices that were not sampled, in the {rung.name} rung (--effort thorough: all)"
        for rung in report.rungs if rung.sampled is not None
    ]  # fmt: skip
    return {
        "rungs": rungs, "prompt_sha256": hashlib.sha256(o.prompt.encode("utf-8", "surrogateescape")).hexdigest(),
        "left_out": left_out,
        **{name: getattr(o, name) for name in (
            "n_predict", "threads", "ctx_size", "seed", "tensor", "repack", "reference", "probes", "sanitize",
        )},
    }  # fmt: skip
