"""The nightly's configuration: a TOML file, checked whole, and the matrix of cells that it means.

name = "nightly"               # of the configuration in the history; the file's own name where it is not given
history = "nightly.sqlite"     # paths count from this file's folder
jobs = 1                       # cells at a time
time_limit = 900               # seconds a cell
build_time_limit = 7200        # seconds for making a variant's Python
n_predict = 16
threads = 0                    # a cell; 0: every core
models = ["tiny-Q4_0.gguf", "models/*.gguf"]              # as they are
kernels = ["q8_1", "f32", "my_kernel.py:gemm"]            # default: q8_1
hosts = ["cpu"]                # default: auto
keep_reports = "failures"      # or "all"

[quantize]                     # further cells: each source in each type, quantized by llama.cpp
sources = ["tiny-F16.gguf"]
types = ["Q4_0", "Q6_K"]

[prompts]                      # name → text; default: the command line's own
story = "Once upon a time"

[variants.NAME]                # of llama.cpp; an empty table is the one that is installed. Default: that one
llama-cpp-python = "0.3.35"    # this version, in a virtual environment of its own
cmake-args = "-DGGML_NATIVE=OFF"                          # built so, likewise
repack = true                  # --repack
reference = "gpu"              # --reference
hosts = ["gpu"]                # instead of the hosts above

[[exclude]]                    # cells that match all that is given are not planned
kernel = "f32"                 # model, type, kernel, host, prompt, variant
variant = "repacked"
"""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from ..formats import FILE_TYPES
from ..gguf import printable
from ..hosts import HOST_CHOICES, HOSTS
from ..kernels import DEFAULT_KERNEL, FAMILIES, KERNELS
from ..kernels.foreign import names_foreign
from ..results import DEFAULT_PROMPT
from ..rungs.run import REFERENCES
from ..support.errors import UsageError
from .records import Key

#: More cells than any night has time for.
MOST_CELLS = 100_000
_MOST_BYTES = 1 << 20
_MOST_PROMPT = 100_000
_NAME = re.compile(r"[\w.+-]{1,64}")
_VERSION = re.compile(r"\d+(\.\d+)*([a-z]+\d*)?([.+-][\w.]+)?")


@dataclass(frozen=True)
class Variant:
    """One llama.cpp: see the module. Without `version` and `cmake_args` it is the installed one."""

    name: str
    version: str | None = None
    cmake_args: str | None = None
    repack: bool = False
    reference: str = "cpu"
    hosts: tuple[str, ...] | None = None

    @property
    def installed(self) -> bool:
        return self.version is None and self.cmake_args is None


@dataclass(frozen=True)
class Model:
    """A model, `type` "" as it is, else quantized to that type."""

    path: Path
    type: str = ""


@dataclass(frozen=True)
class Config:
    """A configuration: see the module."""

    name: str
    path: Path
    history: Path
    models: tuple[Model, ...]
    kernels: tuple[str, ...]
    hosts: tuple[str, ...]
    prompts: Mapping[str, str]
    variants: tuple[Variant, ...]
    excluded: tuple[Mapping[str, str], ...] = ()
    jobs: int = 1
    time_limit: float = 900.0
    build_time_limit: float = 7200.0
    n_predict: int = 16
    threads: int = 0
    keep_all: bool = False

    @property
    def folder(self) -> Path:
        return self.path.absolute().parent

    def kernel_path(self, kernel: str) -> Path | None:
        """The file of a kernel that the project does not ship."""
        return self.folder / kernel.rpartition(":")[0] if names_foreign(kernel) else None

    def kernel_argument(self, kernel: str) -> str:
        """As `--kernel` takes it in any folder."""
        path = self.kernel_path(kernel)
        return kernel if path is None else f"{path}:{kernel.rpartition(':')[2]}"

    def cells(self, auto: str) -> tuple[Key, ...]:
        """The matrix, in the order in which it is run; `auto`: the host that it stands for here.

        Raises UsageError where nothing is left of it.
        """
        keys = dict.fromkeys(
            key
            for variant in self.variants
            for model in self.models
            for kernel in self.kernels
            for prompt in self.prompts
            for host in variant.hosts or self.hosts
            for key in [
                Key(model.path.name, model.type, kernel, auto if host == "auto" else host, prompt, variant.name)
            ]
            if not any(all(getattr(key, k) == v for k, v in rule.items()) for rule in self.excluded)
        )
        if not keys:
            raise UsageError(f"{printable(self.path.name)}: exclude: leaves no cell of the matrix")
        return tuple(keys)

    def describe(self) -> dict[str, str]:
        """What changes the meaning of a night, beside the files: name → value."""
        variants = {v.name: repr(v) for v in self.variants}
        prompts = hashlib.sha256(repr(sorted(self.prompts.items())).encode()).hexdigest()
        return {
            "n_predict": str(self.n_predict), "threads": str(self.threads), "time_limit": f"{self.time_limit:g}",
            "prompts": prompts, "variants": hashlib.sha256(repr(sorted(variants.items())).encode()).hexdigest(),
        }  # fmt: skip


def read_config(path: Path) -> Config:
    """Read a configuration. Raises UsageError, one line that names file and key."""
    shown = printable(path.name or str(path))
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
        if len(raw) > _MOST_BYTES:
            raise UsageError(f"{shown}: is larger than any configuration")
        table = tomllib.loads(raw.decode())
    except OSError as error:
        raise UsageError(f"cannot read the configuration {shown}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{shown}: is no TOML: {printable(str(error), 200)}") from None
    return _Reader(shown, path).config(table)


@dataclass
class _Table:
    """A table of the file, whose keys are taken one after the other."""

    reader: _Reader
    where: str
    held: dict[str, Any]
    known: set[str] = field(default_factory=set)

    def take(self, key: str, kind: type | tuple[type, ...], words: str, default: Any) -> Any:
        self.known.add(key)
        if key not in self.held:
            return default
        value = self.held[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            self.fail(key, f"must be {words}, is {printable(repr(value), 60)}")
        return value

    def text(self, key: str, default: str | None = None) -> Any:
        value = self.take(key, str, "a string", default)
        if value is not None and ("\0" in value or value != value.encode("utf-8", "replace").decode()):
            self.fail(key, "holds a character that no command line takes")
        return value

    def number(self, key: str, default: float, low: float, high: float, kind: Any = int) -> Any:
        value = self.take(key, kind, "a number" if kind is not int else "a whole number", default)
        if not low <= value <= high:
            self.fail(key, f"must be from {low:g} to {high:g}, is {value}")
        return value

    def texts(self, key: str, default: list[str] | None = None) -> list[str]:
        value = self.take(key, list, "a list of strings", default if default is not None else [])
        for entry in value:
            if not isinstance(entry, str) or not entry or "\0" in entry:
                self.fail(key, f"must be a list of strings, holds {printable(repr(entry), 60)}")
        if key in self.held and not value:
            self.fail(key, "is empty")
        twice = sorted({e for e in value if value.count(e) > 1})
        if twice:
            self.fail(key, f"holds {printable(twice[0], 60)} twice")
        return list(value)

    def table(self, key: str) -> _Table | None:
        found = self.take(key, dict, f"a table, [{key}]", None)
        return None if found is None else _Table(self.reader, f"{self.where}{key}.", found)

    def end(self) -> None:
        """Every key was taken."""
        for key in self.held:
            if key not in self.known:
                self.fail(key, f"is not known; there are: {', '.join(sorted(self.known))}")

    def fail(self, key: str, what: str) -> NoReturn:
        self.reader.fail(f"{self.where}{key}", what)


class _Reader:
    def __init__(self, shown: str, path: Path) -> None:
        self._shown, self._path = shown, path
        self._folder = path.absolute().parent

    def fail(self, key: str, what: str) -> NoReturn:
        raise UsageError(f"{self._shown}: {printable(key, 100)}: {what}")

    def config(self, held: dict[str, Any]) -> Config:
        top = _Table(self, "", held)
        name = top.text("name", self._path.stem)
        self._check_name("name", name)
        history = self._folder / top.text("history", "nightly.sqlite")
        if history.is_dir() or not history.parent.is_dir():
            self.fail("history", f"{printable(str(history), 200)} cannot be a file")
        jobs = top.number("jobs", 1, 1, 256)
        time_limit = float(top.number("time_limit", 900, 1, 10**6, (int, float)))
        build_time_limit = float(top.number("build_time_limit", 7200, 1, 10**6, (int, float)))
        n_predict = top.number("n_predict", 16, 1, 1 << 20)
        threads = top.number("threads", 0, 0, 512)
        kernels = top.texts("kernels", [DEFAULT_KERNEL])
        hosts = self._hosts(top, "hosts", ["auto"])
        keep = top.text("keep_reports", "failures")
        if keep not in ("failures", "all"):
            top.fail("keep_reports", f'must be "failures" or "all", is {printable(repr(keep), 60)}')
        models = self._models(top)
        prompts = self._prompts(top.table("prompts"))
        variants = self._variants(top)
        excluded = self._excluded(top, {m.path.name for m in models}, {m.type for m in models}, set(kernels),
                                  set(prompts), {v.name for v in variants})  # fmt: skip
        top.end()
        config = Config(
            name, self._path, history, models, tuple(kernels), hosts, prompts, variants, excluded, jobs, time_limit,
            build_time_limit, n_predict, threads, keep == "all",
        )  # fmt: skip
        self._check_kernels(config)
        most = len(models) * len(kernels) * len(prompts) * sum(len(v.hosts or hosts) for v in variants)
        if most > MOST_CELLS:
            self.fail("models", f"the matrix has {most:,} cells, {MOST_CELLS:,} are the most")
        config.cells("cpu")
        return config

    def _check_name(self, key: str, name: str) -> None:
        if not _NAME.fullmatch(name):
            self.fail(key, "a name has up to 64 letters, digits and . _ + -")

    def _hosts(self, table: _Table, key: str, default: list[str]) -> tuple[str, ...]:
        hosts = table.texts(key, default)
        for host in hosts:
            if host not in HOST_CHOICES:
                table.fail(key, f"no host is called {printable(host, 60)}; there are: {', '.join(HOST_CHOICES)}")
        return tuple(hosts)

    def _check_kernels(self, config: Config) -> None:
        for kernel in config.kernels:
            path = config.kernel_path(kernel)
            if path is None and kernel not in FAMILIES and kernel not in KERNELS:
                self.fail("kernels", f"no kernel is called {printable(kernel, 60)}; there are: "
                          f"{', '.join([*FAMILIES, *KERNELS])}, FILE.py:NAME and FILE.cu:SYMBOL")  # fmt: skip
            if path is not None and not path.is_file():
                self.fail("kernels", f"{printable(kernel, 100)}: no such file")

    def _models(self, top: _Table) -> tuple[Model, ...]:
        found = [Model(path) for path in self._files(top, "models")]
        quantize = top.table("quantize")
        if quantize is not None:
            types = quantize.texts("types")
            for kind in types:
                if kind not in FILE_TYPES:
                    quantize.fail("types", f"llama.cpp quantizes no file to {printable(kind, 60)}; there are: "
                                  f"{', '.join(FILE_TYPES)}")  # fmt: skip
            sources = self._files(quantize, "sources")
            for key, value in (("types", types), ("sources", sources)):
                if not value:
                    quantize.fail(key, "is missing")
            found += [Model(path, kind) for path in sources for kind in types]
            quantize.end()
        if not found:
            self.fail("models", "the matrix is empty: neither models nor [quantize] name a file")
        names: dict[str, Path] = {}
        for model in found:
            other = names.setdefault(model.path.name, model.path)
            if other != model.path:
                self.fail("models", f"two models are called {printable(model.path.name, 60)}: their cells could not "
                          "be told apart")  # fmt: skip
        return tuple(found)

    def _files(self, table: _Table, key: str) -> list[Path]:
        """What the patterns name, each file once."""
        found: dict[Path, None] = {}
        for pattern in table.texts(key):
            if re.search(r"[*?\[]", pattern) and not (self._folder / pattern).exists():
                base, relative = (
                    (Path("/"), pattern.lstrip("/")) if pattern.startswith("/") else (self._folder, pattern)
                )
                try:
                    paths = sorted(path for path in base.glob(relative) if path.is_file())
                except (ValueError, NotImplementedError, OSError) as error:
                    table.fail(key, f"{printable(pattern, 100)} is no pattern: {printable(str(error), 100)}")
            else:
                paths = [self._folder / pattern]
            if not paths or not paths[0].is_file():
                table.fail(key, f"{printable(pattern, 100)}: no such file")
            found |= dict.fromkeys(Path(os.path.abspath(path)) for path in paths)
        return list(found)

    def _prompts(self, table: _Table | None) -> dict[str, str]:
        if table is None:
            return {"default": DEFAULT_PROMPT}
        out = {}
        for name in table.held:
            self._check_name(f"prompts.{name}", name)
            out[name] = table.text(name)
            if not out[name]:
                table.fail(name, "is empty")
            if len(out[name].encode()) > _MOST_PROMPT:
                table.fail(name, f"is longer than the {_MOST_PROMPT:,} bytes that a command line takes")
        if not out:
            self.fail("prompts", "is empty")
        return out

    def _variants(self, top: _Table) -> tuple[Variant, ...]:
        table = top.table("variants")
        if table is None:
            return (Variant("installed"),)
        out = []
        for name in table.held:
            self._check_name(f"variants.{name}", name)
            own = table.table(name)
            assert own is not None
            version, cmake = own.text("llama-cpp-python"), own.text("cmake-args")
            if version is not None and not _VERSION.fullmatch(version):
                own.fail("llama-cpp-python", f"{printable(version, 60)} is no version")
            reference = own.text("reference", REFERENCES[0])
            if reference not in REFERENCES:
                own.fail("reference", f"must be one of {', '.join(REFERENCES)}, is {printable(reference, 60)}")
            repack = own.take("repack", bool, "true or false", False)
            hosts = self._hosts(own, "hosts", []) or None
            out.append(Variant(name, version, cmake, repack, reference, hosts))
            own.end()
        if not out:
            self.fail("variants", "is empty")
        return tuple(out)

    def _excluded(
        self, top: _Table, models: set[str], types: set[str], kernels: set[str], prompts: set[str], variants: set[str]
    ) -> tuple[Mapping[str, str], ...]:  # fmt: skip
        known = {"model": models, "type": types, "kernel": kernels, "host": set(HOSTS), "prompt": prompts,
                 "variant": variants}  # fmt: skip
        out = []
        for i, rule in enumerate(top.take("exclude", list, "a list of tables, [[exclude]]", [])):
            if not isinstance(rule, dict):
                self.fail("exclude", "must be a list of tables, [[exclude]]")
            table = _Table(self, f"exclude {i + 1}.", rule)
            chosen = {}
            for key, values in known.items():
                value = table.text(key)
                if value is not None:
                    if value not in values:  # it would exclude nothing, and nobody would know
                        table.fail(key, f"nothing is called {printable(value, 60)}; there are: "
                                   f"{', '.join(sorted(printable(v, 60) for v in values if v))}")  # fmt: skip
                    chosen[key] = value
            table.end()
            if not chosen:
                self.fail(f"exclude {i + 1}", "is empty: it would exclude everything")
            out.append(chosen)
        return tuple(out)
