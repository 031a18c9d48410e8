"""Comparison of a certificate with files, with this installation, and with a signature."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import Literal

from ..gguf.model import part_paths
from ..support.errors import EXIT_MISMATCH, EXIT_UNVERIFIED, EXIT_VERIFIED, EnvironmentFault, UsageError
from ..support.paths import kernel_root
from ..support.sources import file_digest
from . import materials, signing
from .materials import of_the_system
from .records import Project, Statement

#: The outcome of a comparison.
Outcome = Literal["matches", "differs", "not checked"]


@dataclass(frozen=True)
class Line:
    """One comparison: its subject, the outcome, and a remark."""

    what: str
    outcome: Outcome
    remark: str = ""


@dataclass(frozen=True)
class Checked:
    """All comparisons with a certificate."""

    statement: Statement
    lines: tuple[Line, ...]

    @property
    def exit_code(self) -> int:
        """1 if something differs or the certified verdict is a mismatch; otherwise 0 if everything matches and a whole
        run is verified without waivers; otherwise 5."""
        said = self.statement.predicate
        outcomes = {line.outcome for line in self.lines}
        if "differs" in outcomes or said.exit_code == EXIT_MISMATCH:
            return EXIT_MISMATCH
        whole = said.verdict == "verified" and not said.asked.left_out
        return EXIT_VERIFIED if whole and outcomes == {"matches"} else EXIT_UNVERIFIED


@dataclass(frozen=True)
class Installed:
    """This installation: the project's digest, and llama.cpp's library digests or the reason they are unknown."""

    project: Project
    libraries: dict[str, str] | str


def installed() -> Installed:
    """Return this process's installation. Raises EnvironmentFault if the project's own files cannot be read."""
    try:
        libraries: dict[str, str] | str = materials.llama_libraries()
    except EnvironmentFault as fault:
        libraries = str(fault)
    return Installed(materials.project(), libraries)


@dataclass(frozen=True)
class Signature:
    """A signature to check: its file, the file of allowed signers, and the required signer ("" for any)."""

    file: Path
    allowed: Path
    signer: str = ""


def compare(
    statement: Statement,
    content: bytes,
    folder: Path,
    model: Sequence[Path] = (),
    kernel: Sequence[Path] = (),
    signature: Signature | None = None,
    unsigned: bool = False,
    here: Installed | None = None,
) -> Checked:
    """Compare a certificate with everything that it lists.

    Args:
        content: the certificate's bytes.
        folder: where recorded names are looked up if no file is given.
        model: the model's files, or the first part; empty to look them up.
        kernel: files of the kernel; its other files are looked up beside them.
        signature: the signature to check, or None.
        unsigned: accept a certificate without a signature.
        here: this installation; None to inspect it.

    Raises UsageError if a given file cannot be read, EnvironmentFault if ssh-keygen is missing.
    """
    said = statement.predicate
    digests = {subject.name: subject.digest.sha256 for subject in statement.subject}
    parts = [p for path in model for p in (part_paths(path, len(said.model.files)) if len(model) == 1 else [path])]
    of_model = {name: digests[name] for name in said.model.files}
    of_kernel = {name: digests[name] for name in said.kernel.files}
    lines = [
        *_files("model", of_model, parts, _beside(folder)),
        *_files("kernel", of_kernel, kernel, _kernel_places(said.kernel.shipped, folder)),
    ]
    for name, why in said.kernel.unknown.items():
        lines.append(Line(f"kernel: {name}", "not checked", f"unknown to the certificate: {why}"))
    if not said.kernel.shipped and said.sandbox.kind != "bubblewrap":
        lines.append(Line("kernel: boundary", "not checked", f"not confined: {said.sandbox.by}"))
    here = here or installed()
    if said.kernel.system:
        lines.append(_system(said.kernel.system))
    lines += [_project(said.project, here.project), _llama(said.reference.libraries, here.libraries)]
    if signature is not None:
        found = signing.verify(content, signature.file, signature.allowed, signature.signer)
        words = f"good, by {found.signer}" if found.good else found.why
        lines.append(Line("signature", "matches" if found.good else "differs", words))
    elif not unsigned:
        why = "anyone could have written this; give --allowed-signers, or --unsigned if you trust where it came from"
        lines.append(Line("signature", "not checked", why))
    return Checked(statement, tuple(lines))


_Places = Callable[[str], list[Path]]


def _beside(folder: Path) -> _Places:
    return lambda name: [folder / name] if _safe(name) else []


def _kernel_places(shipped: bool, folder: Path) -> _Places:
    """Return a function that lists the places of a kernel's file: below the folder, and, for shipped kernels, in this
    installation."""

    def places(name: str) -> list[Path]:
        found = _beside(folder)(name)
        if shipped and _safe(name) and name.startswith("kernels/"):
            found.append(kernel_root() / name.removeprefix("kernels/"))
        return found

    return places


def _safe(name: str) -> bool:
    """Whether a name from a certificate stays inside its folder."""
    path = PurePosixPath(name)
    return bool(name) and not path.is_absolute() and ".." not in path.parts and "\0" not in name


def _files(what: str, wanted: dict[str, str], given: Sequence[Path], places: _Places) -> list[Line]:
    """Compare every file that the certificate lists, and every given file, which must be one of them.

    A file is compared with the recorded file at the same place, and counts for one recorded file only.
    """
    found: dict[str, Line] = {}
    lines, roots = [], []
    for path in given:
        digest = file_digest(path)
        if digest is None:
            raise UsageError(f"cannot read {materials.shown_name(path)}")
        left = {name: sha256 for name, sha256 in wanted.items() if name not in found}
        at_place = _at_place(path, left)
        name = next((n for n in at_place or left if left[n] == digest), None)
        if name is None:
            lines.append(Line(f"{what}: {materials.shown_name(path)}", "differs", "no certified file has its digest"))
            for same in at_place:
                found[same] = Line(f"{what}: {same}", "differs", f"{digest[:16]}… is not {wanted[same][:16]}…")
            continue
        roots.append((PurePosixPath(name).parent, path.parent))
        found[name] = Line(f"{what}: {name}", "matches")
    for name, digest in wanted.items():
        if name in found:
            continue
        beside = [there / PurePosixPath(name).relative_to(top) for top, there in roots if _within(name, top)]
        tried = [(path, file_digest(path)) for path in (beside or places(name))]
        digests = [d for _, d in tried if d is not None]
        if not digests:
            found[name] = Line(f"{what}: {name}", "not checked", "not found; give its path")
        elif digest in digests:
            found[name] = Line(f"{what}: {name}", "matches")
        else:
            found[name] = Line(f"{what}: {name}", "differs", f"{digests[0][:16]}… is not {digest[:16]}…")
    told = {line.what for line in found.values() if line.outcome == "differs"}  # so that nothing is reported twice
    return [*found.values(), *(line for line in lines if line.what not in told)]


def _at_place(path: Path, names: Iterable[str]) -> list[str]:
    """Return the names that share the most trailing parts with a path; at least the last part must agree."""

    def agrees(name: str) -> int:
        parts = zip(reversed(PurePosixPath(name).parts), reversed(path.parts), strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], parts))

    ranks = {name: agrees(name) for name in names}
    most = max(ranks.values(), default=0)
    return [name for name, rank in ranks.items() if rank == most] if most else []


def _within(name: str, top: PurePosixPath) -> bool:
    return _safe(name) and PurePosixPath(name).is_relative_to(top)


def _system(certified: dict[str, str]) -> Line:
    """Compare files of the system. Differences (another machine, an update) are no fault of the kernel."""
    other = [path for path, digest in certified.items() if not of_the_system(path) or file_digest(path) != digest]
    if not other:
        return Line("system", "matches", f"{len(certified)} files that the kernel's loader and compilers opened")
    names = f"{', '.join(other[:3])}{f' and {len(other) - 3} more' if len(other) > 3 else ''}"
    return Line("system", "not checked", f"not the same here: {names}; run the command again")


def _project(certified: Project, here: Project) -> Line:
    if certified.sha256 == here.sha256:
        return Line("gguf-verify", "matches", here.version)
    other = f"certified by {certified.version}, this is {here.version}"
    if certified.version == here.version:
        other += " with other files"
    return Line("gguf-verify", "not checked", f"{other}: run the command again, or check with that version")


def _llama(certified: dict[str, str], here: dict[str, str] | str) -> Line:
    if isinstance(here, str):
        return Line("llama.cpp", "not checked", here)
    if certified == here:
        return Line("llama.cpp", "matches", f"{len(here)} libraries")
    other = sorted(name for name in {*certified, *here} if certified.get(name) != here.get(name))
    return Line("llama.cpp", "not checked", f"another build is installed here: {', '.join(other)} differ")
