"""Models: one GGUF file, or all parts of a split one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType

from ..results.composition import Composition, TypeShare
from ..results.environment import FileInfo
from ..support.command_line import cores
from ..support.errors import HarnessError, MalformedFile
from ..support.text import printable
from .ahead import MOST_AT_ONCE, Ahead
from .digests import Digests
from .file import GgufFile, Tensor
from .parser import parse
from .records import Finding, finding
from .storage import Budget

#: llama.cpp's names of the parts: a prefix, the number from 1, the count.
PART_NAME = re.compile(r"(?P<prefix>.*)-(?P<no>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL)

#: The most characters of an architecture's name. llama.cpp's have fewer than 30; reports repeat it.
MAX_ARCHITECTURE = 256


class RefusedFile(MalformedFile):
    """A file that the parser or the rules for split models refuse.

    Args:
        path: the file.
        finding: the reason, with its byte range.
    """

    def __init__(self, path: Path, finding: Finding) -> None:
        cure = finding.rule.cure.removesuffix(".")
        super().__init__(f"{printable(str(path))}: {finding.line()} · fix: {cure}")
        self.path = path
        self.finding = finding


class _Hashing:
    """Digests of parts, computed by threads."""

    def __init__(self, parts: tuple[GgufFile, ...]) -> None:
        self._wanted = True
        self._pool = ThreadPoolExecutor(max(1, min(len(parts), cores(), MOST_AT_ONCE)))
        self._futures: list[Future[Digests]] = [
            self._pool.submit(part.mapped.digests, lambda: self._wanted) for part in parts
        ]

    def digests(self) -> tuple[Digests, ...]:
        """Wait for the digests of each part. Raises the errors of reading."""
        return tuple(future.result() for future in self._futures)

    @property
    def done(self) -> bool:
        """Return whether the digests are ready."""
        return all(future.done() for future in self._futures)

    def close(self) -> None:
        """Stop reading the files."""
        self._wanted = False
        self._pool.shutdown(cancel_futures=True)


def composition(tensors: Iterable[Tensor]) -> Composition:
    """Return the types of tensors, those with the most bytes first."""
    of_type: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        of_type.setdefault(tensor.type.name, []).append(tensor)
    shares = [
        TypeShare(
            type=name,
            tensors=len(found),
            weights=sum(t.k * t.n_rows for t in found),
            nbytes=sum(t.nbytes for t in found),
        )
        for name, found in of_type.items()
    ]
    return Composition(sorted(shares, key=lambda share: (-share.nbytes, share.type)))


@dataclass
class Model:
    """A model that can be read safely. Its findings have effects below "refuse".

    Args:
        path: the file that was opened, the first part of a split model.
        parts: all files, in order.
        tensors: of all parts, in the order of their descriptions.
    """

    path: Path
    parts: tuple[GgufFile, ...]
    tensors: Mapping[str, Tensor]
    _digests: tuple[Digests, ...] = field(default=(), repr=False)
    _hashing: _Hashing | None = field(default=None, repr=False)

    @property
    def metadata(self) -> Mapping[str, object]:
        """The keys of the first part, which are the model's; see `GgufFile.metadata`."""
        return self.parts[0].metadata

    @property
    def architecture(self) -> str | None:
        """The value of `general.architecture`, unchanged; None if it is no string, or too long for a name."""
        value = self.metadata.get("general.architecture")
        return value if isinstance(value, str) and len(value) <= MAX_ARCHITECTURE else None

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(part.size for part in self.parts)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings of all parts. `consistency.check_consistency` finds where metadata contradict the tensors."""
        return tuple(f for part in self.parts for f in part.findings)

    def begin_sha256(self) -> None:
        """Start computing the result of `sha256` in the background."""
        if not self._digests and self._hashing is None:
            self._hashing = _Hashing(self.parts)

    def sha256(self) -> tuple[str, ...]:
        """Return the hex digest of each part, computed once.

        Several parts are hashed at a time, since one digest uses one core.
        """
        self.begin_sha256()
        if self._hashing is not None:
            hashing, self._hashing = self._hashing, None
            with closing(hashing):
                self._digests = hashing.digests()
        return tuple(digests.whole for digests in self._digests)

    @property
    def hashed(self) -> bool:
        """Whether `sha256` returns without waiting."""
        return bool(self._digests) or (self._hashing is not None and self._hashing.done)

    def info(self, wait: bool = True) -> FileInfo:
        """Return the report's entry for the model's file; unless `wait`, without digests that are not ready."""
        return FileInfo(
            path=str(self.path),
            size=self.size,
            sha256=self.sha256() if wait or self.hashed else (),
            architecture=self.architecture or "",
            tensor_types=dict(Counter(t.type.name for t in self.tensors.values())),
            types=tuple(composition(self.tensors.values()).types),
        )

    @property
    def changed(self) -> bool:
        """Whether a part is no longer the opened file, judging by its inode; `altered` also compares content."""
        return any(part.mapped.changed for part in self.parts)

    def altered(self) -> str | None:
        """Return which part differs from the one that `sha256` hashed, and how; None if all bytes are unchanged.

        Reads the files again. Raises ValueError if `sha256` was never called.
        """
        if not self._digests:
            raise ValueError("no digest to compare with")
        changed = "{} was written to, cut or replaced"
        for part in self.parts:  # all of them first, which is fast
            if part.mapped.changed:
                return changed.format(printable(part.path.name, 100))
        for part, digest in zip(self.parts, self._digests, strict=True):
            name = printable(part.path.name, 100)
            try:
                now = part.mapped.sha256() if part.mapped.pieces() != digest.pieces else digest.whole
            except (OSError, HarnessError):
                return f"{name} can no longer be read"
            if now != digest.whole:
                return f"{name} has the SHA-256 {now} now"
            if part.mapped.changed:  # changed during this read
                return changed.format(name)
        return None

    def close(self) -> None:
        if self._hashing is not None:
            self._hashing.close()
            self._hashing = None
        for part in self.parts:
            part.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_model(path: Path | str) -> Model:
    """Open a GGUF file, and all parts of a split one.

    Raises NoSuchFile if there is no regular file at that path, EnvironmentFault if it cannot be read here, and
    RefusedFile if the parser refuses the file, or if a split model is incomplete, inconsistent or not opened by its
    first part. RefusedFile holds the finding, and its message names the file and the byte.
    """
    path = Path(path)
    budget = Budget()
    parts = [_readable(path, 0, budget)]
    try:
        count = _split_count(parts[0])
        if count > 1:
            with Ahead(part_paths(path, count)) as ahead:
                for number in range(1, count):
                    parts.append(_later_part(parts[0], number, count, budget, ahead))
            _check_total(parts)
        return Model(path, tuple(parts), _merged(parts))
    except BaseException:
        for part in parts:
            part.close()
        raise


def _readable(path: Path, number: int, budget: Budget) -> GgufFile:
    file = parse(path, number, budget)
    if file.refused is not None:
        file.close()
        raise RefusedFile(path, file.refused)
    return file


def _refuse(file: GgufFile, slug: str, key: str, expected: str, found: str) -> RefusedFile:
    """Return the exception to raise; it refers to the value of `key`, or to the header if the key is missing."""
    at = file.value_ranges.get(key)
    start, stop = (at.start, at.stop) if at else (0, 0)
    return RefusedFile(file.path, replace(finding(slug, start, stop, expected, found, key), part=file.part))


def _integer(file: GgufFile, key: str) -> int | None:
    value = file.metadata.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise _refuse(file, "split-inconsistent", key, f"an integer as {key}", type(value).__name__)
    return value


def _split_count(first: GgufFile) -> int:
    """Return the number of parts, 1 for a model that is not split."""
    count = _integer(first, "split.count")
    if count is None or count <= 1:
        return 1
    number = _integer(first, "split.no")
    if number != 0:
        name = PART_NAME.fullmatch(first.path.name)
        start = f"{name['prefix']}-00001-of-{name['count']}.gguf" if name else "it"
        raise _refuse(
            first,
            "split-first",
            "split.no",
            f"the first part; open {printable(start)}",
            "no split.no" if number is None else f"part {number + 1} of {count}",
        )
    name = PART_NAME.fullmatch(first.path.name)
    if name is None or int(name["no"]) != 1 or int(name["count"]) != count:
        raise _refuse(
            first,
            "split-inconsistent",
            "split.count",
            f"a file name that ends in -00001-of-{count:05d}.gguf",
            f"part 1 of {count} in a file named otherwise",
        )
    return count


def part_names(first: str, count: int) -> list[str]:
    """Return the file names of a model of `count` parts, given the name of the first."""
    name = PART_NAME.fullmatch(first)
    return [first] if name is None else [f"{name['prefix']}-{i + 1:05d}-of-{count:05d}.gguf" for i in range(count)]


def part_paths(first: Path, count: int) -> list[Path]:
    """Return the files of a model of `count` parts, of which `first` is the first."""
    return [first.with_name(name) for name in part_names(first.name, count)]


def _later_part(first: GgufFile, number: int, count: int, budget: Budget, ahead: Ahead) -> GgufFile:
    path = ahead.paths[number]
    if not path.exists():
        raise _refuse(
            first, "split-part-missing", "split.count", f"{count} parts", f"no file {printable(path.name)} beside it"
        )
    part = ahead.take(number, budget) or _readable(path, number, budget)
    try:
        for key, expected in (("split.no", number), ("split.count", count)):
            found = _integer(part, key)
            if found != expected and not (found is None and key == "split.count"):
                what = f"no {key}" if found is None else f"{key} {found}"
                raise _refuse(part, "split-inconsistent", key, f"{expected} as {key}", what)
    except BaseException:
        part.close()
        raise
    return part


def _check_total(parts: list[GgufFile]) -> None:
    key = "split.tensors.count"
    expected, found = _integer(parts[0], key), sum(len(part.tensors) for part in parts)
    if expected is not None and expected != found:
        raise _refuse(
            parts[0], "split-inconsistent", key, f"{found} as {key}, which all parts hold", f"{key} {expected}"
        )


def _merged(parts: list[GgufFile]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for part in parts:
        for name, tensor in part.tensors.items():
            if name in tensors:
                at = tensor.described[0]
                again = finding(
                    "duplicate-tensor",
                    at.start,
                    at.stop,
                    "each tensor in one part",
                    f"the name '{printable(name)}' again, from part {tensors[name].part + 1}",
                    name,
                )
                raise RefusedFile(part.path, replace(again, part=part.part))
            tensors[name] = tensor
    return tensors
