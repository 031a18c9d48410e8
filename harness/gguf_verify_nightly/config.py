"""The configuration of a nightly: a TOML file, checked completely, and the matrix of cells that it describes.

`REFERENCE` shows every key. The structs below hold the defaults and the limits.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from gguf_verify.formats.tensor_types import FILE_TYPES
from gguf_verify.hosts.choice import HOST_CHOICES, HOSTS, host_named
from gguf_verify.kernels.families import DEFAULT_KERNEL, FAMILIES
from gguf_verify.kernels.foreign.names import file_of, names_foreign
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.results.options import DEFAULT_PROMPT
from gguf_verify.support.errors import UsageError
from gguf_verify.support.settings import Settings, read_settings
from gguf_verify.support.text import printable
from gguf_verify.support.toml import Mistake, read_toml, typed
from gguf_verify.waivers import Waiver, read_waivers

from .devices import NAME as DEVICE_NAME
from .devices import build_in
from .records import BACKEND, Key

#: An example configuration with every key.
REFERENCE = """\
name = "nightly"               # the configuration's name in the history; default: the file's name without .toml
history = "nightly.sqlite"     # the history; paths are relative to this file's folder
jobs = 1                       # number of cells to run at the same time
time_limit = 900               # time limit of a cell, in seconds
build_time_limit = 7200        # time limit for installing one llama.cpp, in seconds
n_predict = 16                 # tokens to generate in each run
seed = 7                       # seed of every run; default: a new one each night, printed, and reused on resume
threads = 0                    # threads per cell; 0 means one per core
models = ["tiny-Q4_0.gguf", "models/*.gguf"]              # files to verify as they are
kernels = ["q8_1", "f32", "my_kernel.py:gemm"]            # values of --kernel; default: q8_1
hosts = ["cpu"]                # values of --host; default: auto
devices = ["CPU"]              # check llama.cpp's graph on these (`gguf-verify backend --device`); default: none
keep_reports = "failures"      # runs whose full report the history keeps: "failures" or "all"
waivers = "waivers.toml"       # known mismatches that do not fail a night before they expire (--waivers)

[quantize]                     # more models: each source, quantized by llama.cpp to each type
sources = ["tiny-F16.gguf"]
types = ["Q4_0", "Q6_K"]

[prompts]                      # name = text; default: the default prompt of `gguf-verify verify`
story = "Once upon a time"

[variants.NAME]                # one llama.cpp; an empty table is the installed one. Default: only the installed one
llama-cpp-python = "0.3.35"    # use this version, installed in its own virtual environment
cmake-args = "-DGGML_NATIVE=OFF"                          # build with these CMake arguments, also in its own
nvrtc = "13.2.78"              # compile kernels with this version of NVRTC (nvidia-cuda-nvrtc on PyPI)
repack = true                  # pass --repack
reference = "gpu"              # value of --reference: cpu, gpu, or a device name such as Vulkan0
hosts = ["gpu"]                # replaces the hosts above for this variant
devices = []                   # replaces the devices above for this variant

[variants.VULKAN]              # a build of llama.cpp in a folder; only checks devices, not kernels
llama = "llama-vulkan"         # value of `gguf-verify backend --llama`
devices = ["CPU", "Vulkan0"]

[[exclude]]                    # do not run the cells that match every key of this table
kernel = "f32"                 # keys: model, type, kernel, host, prompt, variant; device: kernel "backend", host NAME
variant = "NAME"
"""
#: Runs whose full report the history keeps.
KEEP_REPORTS = ("failures", "all")
#: Upper limit: no night has time for more cells.
MOST_CELLS = 100_000
_MOST_PROMPT = 100_000
_NAME = re.compile(r"[\w.+-]{1,64}")
_VERSION = re.compile(r"\d+(\.\d+)*([a-z]+\d*)?([.+-][\w.]+)?")
#: A command line cannot contain a NUL.
Text = Annotated[str, Meta(pattern=r"^[^\x00]*$")]
Names = Annotated[list[Text], Meta(min_length=1)]
Seconds = Annotated[float, Meta(ge=1, le=10**6)]


class Quantize(Struct, frozen=True):
    """The table [quantize]; `sources` are glob patterns."""

    sources: Names
    types: Names


class Variant(Struct, frozen=True, rename={"version": "llama-cpp-python", "cmake_args": "cmake-args"}):
    """A table [variants.NAME]: one llama.cpp.

    Without `version`, `cmake_args` and `llama` this is the installed llama.cpp. Without the first two, its cells run
    in the installed Python.
    """

    version: Text | None = None
    cmake_args: Text | None = None
    nvrtc: Text | None = None
    repack: bool = False
    reference: str = "cpu"
    hosts: Names | None = None
    llama: Text | None = None
    devices: list[Text] | None = None

    @property
    def installed(self) -> bool:
        return self.version is None and self.cmake_args is None


class Model(Struct, frozen=True):
    """A model: the file as it is if `type` is "", otherwise quantized to that type."""

    path: Path
    type: str = ""


class ConfigFile(Struct, frozen=True, kw_only=True):
    """The content of the file. Names, paths and the inner tables are checked afterwards."""

    name: Text | None = None
    history: Text = "nightly.sqlite"
    jobs: Annotated[int, Meta(ge=1, le=256)] = 1
    time_limit: Seconds = 900.0
    build_time_limit: Seconds = 7200.0
    n_predict: Annotated[int, Meta(ge=1, le=1 << 20)] = 16
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    threads: Annotated[int, Meta(ge=0, le=512)] = 0
    models: Names | None = None
    kernels: list[Text] = msgspec.field(default_factory=lambda: [DEFAULT_KERNEL])
    hosts: Names = msgspec.field(default_factory=lambda: ["auto"])
    devices: list[Text] = []
    keep_reports: Text = KEEP_REPORTS[0]
    waivers: Text | None = None
    quantize: dict[str, Any] | None = None
    prompts: dict[str, Any] | None = None
    variants: dict[str, Any] | None = None
    exclude: list[dict[str, Text]] = []


@dataclass(frozen=True)
class Config:
    """A checked configuration. See `REFERENCE` for the keys.

    Args:
        path: the configuration's file.
        file: its settings; the fields below hold the resolved values.
        models: all models of the matrix; those to be quantized have a type.
        prompts: name → text.
        variants: name → llama.cpp.
        known: the waivers in the file `file.waivers`.
        project: the settings of the project that holds the configuration; its keys take precedence over them.
    """

    path: Path
    file: ConfigFile
    name: str
    history: Path
    models: tuple[Model, ...]
    prompts: dict[str, str]
    variants: dict[str, Variant]
    known: tuple[Waiver, ...] = ()
    project: Settings | None = None

    @property
    def folder(self) -> Path:
        return self.path.absolute().parent

    @property
    def waivers(self) -> Path | None:
        """The file of known mismatches."""
        return None if self.file.waivers is None else self.folder / self.file.waivers

    def kernel_path(self, kernel: str) -> Path | None:
        """The file of a kernel that the project does not ship."""
        return self.folder / file_of(kernel)[0] if names_foreign(kernel) else None

    def kernel_argument(self, kernel: str) -> str:
        """The value for `--kernel`, valid in any working directory."""
        path = self.kernel_path(kernel)
        if path is None:
            return kernel
        return f"{path}:{entry}" if (entry := file_of(kernel)[1]) else str(path)

    def build(self, variant: Variant) -> Path | None:
        """The folder with a variant's build of llama.cpp, for `--llama`; None for the one in llama-cpp-python."""
        return None if variant.llama is None else self.folder / variant.llama

    def hosts_of(self, variant: Variant) -> dict[str, list[str]]:
        """Map each kernel of a variant to its hosts, and `BACKEND` to its devices, in the order in which they run."""
        kernels = self.file.kernels if variant.llama is None else []
        devices = self.file.devices if variant.devices is None else variant.devices
        return dict.fromkeys(kernels, variant.hosts or self.file.hosts) | ({BACKEND: devices} if devices else {})

    @property
    def hosts(self) -> set[str]:
        """The hosts of all kernels."""
        columns = [self.hosts_of(variant) for variant in self.variants.values()]
        return {host for hosts_of in columns for name, hosts in hosts_of.items() if name != BACKEND for host in hosts}

    @property
    def devices(self) -> set[str]:
        """The devices of all variants."""
        return {device for variant in self.variants.values() for device in self.hosts_of(variant).get(BACKEND, [])}

    def cells(self, auto: str) -> tuple[Key, ...]:
        """The keys of the matrix in the order in which the cells run.

        Args:
            auto: the host that "auto" stands for on this machine.

        Raises UsageError if every cell is excluded.
        """
        keys = dict.fromkeys(
            key
            for variant_name, variant in self.variants.items()
            for model in self.models
            for kernel, hosts in self.hosts_of(variant).items()
            for prompt in self.prompts
            for named in hosts
            for host in [auto if named == "auto" and kernel != BACKEND else named]
            for key in [Key(model.path.name, model.type, kernel, host, prompt, variant_name)]
            if not any(all(getattr(key, name) == value for name, value in rule.items()) for rule in self.file.exclude)
        )
        if not keys:
            raise UsageError(f"{printable(self.path.name)}: exclude: excludes every cell of the matrix")
        return tuple(keys)

    def settings(self) -> dict[str, str]:
        """The settings, besides files, that must be equal for a night to be resumed: name → value."""
        file = self.file
        return {
            "n_predict": str(file.n_predict), "threads": str(file.threads), "time_limit": f"{file.time_limit:g}",
            "prompts": _digest(self.prompts), "variants": _digest(self.variants),
            "waivers": _digest({w.words: w.reason for w in self.known}),
            "project": _digest({} if self.project is None else self.project.values),
        }  # fmt: skip


def _digest(named: dict[str, Any]) -> str:
    return hashlib.sha256(repr(sorted(named.items())).encode()).hexdigest()


def read_config(path: Path) -> Config:
    """Read a configuration. Raises UsageError with one line that contains the file and the key."""
    table = read_toml(path, "configuration")
    try:
        return _config(path, table)
    except Mistake as error:
        place, what = error.args
        raise UsageError(f"{printable(path.name or str(path))}: {printable(place, 100)}: {what}") from None


def _config(path: Path, table: dict[str, Any]) -> Config:
    file = typed(table, ConfigFile, "")
    file = msgspec.structs.replace(file, hosts=[host_named(name) for name in file.hosts])
    folder = path.absolute().parent
    history = folder / file.history
    if history.is_dir() or not history.parent.is_dir():
        raise Mistake("history", f"{printable(str(history), 200)} is not a possible file path")
    name = path.stem if file.name is None else file.name
    _check_name("name", name)
    models, prompts, variants = _models(file, folder), _prompts(file.prompts), _variants(file.variants)
    known = () if file.waivers is None else read_waivers(folder / file.waivers)
    config = Config(path, file, name, history, models, prompts, variants, known, read_settings(folder))
    _check_known("keep_reports", file.keep_reports, KEEP_REPORTS, "unknown value")
    _check_hosts("hosts", file.hosts)
    _check_kernels(config)
    _check_devices(config)
    _check_exclusions(config)
    hosts = sum(len(named) for variant in config.variants.values() for named in config.hosts_of(variant).values())
    most = len(config.models) * len(config.prompts) * hosts
    if most > MOST_CELLS:
        raise Mistake("models", f"the matrix has {most:,} cells; the limit is {MOST_CELLS:,}")
    config.cells("cpu")
    return config


def _check_name(place: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise Mistake(place, "a name has 1 to 64 characters: letters, digits and . _ + -")


def _once(place: str, values: list[str]) -> list[str]:
    for value in values:
        if not value:
            raise Mistake(place, "contains an empty string")
        if values.count(value) > 1:
            raise Mistake(place, f"contains {printable(value, 60)} twice")
    return values


def _check_known(place: str, value: str, known: Any, what: str) -> None:
    if value not in known:
        raise Mistake(place, f"{what} {printable(value, 60)}; choose from: {', '.join(known)}")


def _check_hosts(place: str, hosts: list[str]) -> None:
    for host in _once(place, hosts):
        _check_known(place, host, HOST_CHOICES, "unknown host")


def _check_kernels(config: Config) -> None:
    for kernel in _once("kernels", config.file.kernels):
        path = config.kernel_path(kernel)
        if path is None:
            _check_known(
                "kernels",
                kernel,
                [*FAMILIES, *KERNELS, "FILE.py:NAME", "FILE.cu:SYMBOL", "FILE.toml"],
                "unknown kernel",
            )
        elif not path.is_file():
            raise Mistake("kernels", f"{printable(kernel, 100)}: no such file")


def _check_devices(config: Config) -> None:
    variants = config.variants.items()
    if not config.file.kernels and not config.devices:
        raise Mistake("kernels", "must not be empty unless devices are listed")
    named = [("devices", config.file.devices), *((f"variants.{n}.devices", v.devices or []) for n, v in variants)]
    for place, devices in named:
        for device in _once(place, devices):
            if not DEVICE_NAME.fullmatch(device):
                raise Mistake(place, f"{printable(device, 60)} is not a device name (1 to 64 characters, no spaces)")
    for name, variant in variants:
        place, folder = f"variants.{name}", config.build(variant)
        if folder is not None:
            _check_build(place, variant, folder)
        hosts = variant.hosts or config.file.hosts
        if variant.nvrtc is not None and all(host in HOSTS and HOSTS[host].emulated for host in hosts):
            raise Mistake(f"{place}.nvrtc", "has no effect: none of its hosts compiles with NVRTC")
        if not config.hosts_of(variant):
            raise Mistake(place, "has no cells: a variant with llama, or without kernels, needs devices")


def _check_build(place: str, variant: Variant, folder: Path) -> None:
    """Reject keys that have no effect beside `llama`: those that select another llama.cpp, or that only concern
    kernels."""
    others = {
        "llama-cpp-python": variant.version, "cmake-args": variant.cmake_args, "nvrtc": variant.nvrtc,
        "hosts": variant.hosts,
        "reference": None if variant.reference == "cpu" else variant.reference,
    }  # fmt: skip
    for key, value in others.items():
        if value is not None:
            raise Mistake(f"{place}.{key}", "has no effect beside llama: such a variant only checks devices")
    found = build_in(folder)
    if isinstance(found, str):
        raise Mistake(f"{place}.llama", printable(found, 300))


def _models(file: ConfigFile, folder: Path) -> tuple[Model, ...]:
    found = [Model(path) for path in _files("models", file.models or [], folder)]
    if file.quantize is not None:
        quantize = typed(file.quantize, Quantize, "quantize")
        for name in _once("quantize.types", quantize.types):
            _check_known("quantize.types", name, FILE_TYPES, "llama.cpp cannot quantize a file to")
        sources = _files("quantize.sources", quantize.sources, folder)
        found += [Model(path, name) for path in sources for name in quantize.types]
    if not found:
        raise Mistake("models", "the matrix is empty: list files in models or [quantize]")
    names: dict[str, Path] = {}
    for model in found:
        if names.setdefault(model.path.name, model.path) != model.path:
            what = f"two models have the file name {printable(model.path.name, 60)}; names must be unique"
            raise Mistake("models", what)
    return tuple(found)


def _files(place: str, patterns: list[str], folder: Path) -> list[Path]:
    """The files that match the patterns, without duplicates."""
    found: dict[Path, None] = {}
    for pattern in _once(place, patterns):
        if re.search(r"[*?\[]", pattern) and not (folder / pattern).exists():
            base, relative = (Path("/"), pattern.lstrip("/")) if pattern.startswith("/") else (folder, pattern)
            try:
                paths = sorted(path for path in base.glob(relative) if path.is_file())
            except (ValueError, NotImplementedError, OSError) as error:
                what = f"{printable(pattern, 100)} is not a pattern: {printable(str(error), 100)}"
                raise Mistake(place, what) from None
        else:
            paths = [folder / pattern]
        if not paths or not paths[0].is_file():
            raise Mistake(place, f"{printable(pattern, 100)}: no such file")
        found |= dict.fromkeys(Path(os.path.abspath(path)) for path in paths)
    return list(found)


def _named(place: str, table: dict[str, Any], kind: Any) -> dict[str, Any]:
    """Check and convert a table whose keys are chosen by the user."""
    if not table:
        raise Mistake(place, "the table is empty")
    for name in table:
        _check_name(f"{place}.{name}", name)
    return {name: typed(value, kind, f"{place}.{name}") for name, value in table.items()}


def _prompts(table: dict[str, Any] | None) -> dict[str, str]:
    prompts = {"default": DEFAULT_PROMPT} if table is None else _named("prompts", table, Text)
    for name, text in prompts.items():
        if not 0 < len(text.encode()) <= _MOST_PROMPT:
            raise Mistake(f"prompts.{name}", f"a prompt must have 1 to {_MOST_PROMPT:,} bytes")
    return prompts


def _variants(table: dict[str, Any] | None) -> dict[str, Variant]:
    variants = {"installed": Variant()} if table is None else _named("variants", table, Variant)
    variants = {
        name: v if v.hosts is None else msgspec.structs.replace(v, hosts=[*map(host_named, v.hosts)])
        for name, v in variants.items()
    }
    for name, variant in variants.items():
        if variant.version is not None and not _VERSION.fullmatch(variant.version):
            raise Mistake(f"variants.{name}.llama-cpp-python", f"{printable(variant.version, 60)} is not a version")
        if variant.nvrtc is not None and not _VERSION.fullmatch(variant.nvrtc):
            raise Mistake(f"variants.{name}.nvrtc", f"{printable(variant.nvrtc, 60)} is not a version")
        if not DEVICE_NAME.fullmatch(variant.reference):
            raise Mistake(f"variants.{name}.reference", f"{printable(variant.reference, 60)} is not a device name")
        _check_hosts(f"variants.{name}.hosts", variant.hosts or [])
    return variants


def _check_exclusions(config: Config) -> None:
    """Reject unknown names: a rule with a misspelt name would silently exclude nothing."""
    known = {
        "model": {m.path.name for m in config.models}, "type": {m.type for m in config.models if m.type},
        "kernel": [*config.file.kernels, *([BACKEND] if config.devices else [])],
        "host": {*HOSTS, *config.devices}, "prompt": config.prompts, "variant": config.variants,
    }  # fmt: skip
    for i, rule in enumerate(config.file.exclude):
        if not rule:
            raise Mistake(f"exclude[{i}]", "an empty table would exclude every cell")
        for name, value in rule.items():
            _check_known(f"exclude[{i}].{name}", name, known, "unknown key")
            names = sorted(printable(known_name, 60) for known_name in known[name])
            _check_known(f"exclude[{i}].{name}", printable(value, 60), names, "unknown value")
