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

from gguf_verify.formats import FILE_TYPES
from gguf_verify.hosts.choice import HOST_CHOICES, HOSTS
from gguf_verify.kernels.families import DEFAULT_KERNEL, FAMILIES
from gguf_verify.kernels.foreign.opening import file_of, names_foreign
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.results.options import DEFAULT_PROMPT
from gguf_verify.support.errors import UsageError
from gguf_verify.support.text import printable
from gguf_verify.support.toml import Mistake, read_toml, typed
from gguf_verify.waivers import Waiver, read_waivers

from .devices import NAME as DEVICE_NAME
from .devices import build_in
from .records import BACKEND, Key

#: A configuration with every key that there is.
REFERENCE = """\
name = "nightly"               # the configuration's name in the history; default: the file's name without .toml
history = "nightly.sqlite"     # the history; paths are relative to this file's folder
jobs = 1                       # how many cells run at the same time
time_limit = 900               # seconds that a cell may take
build_time_limit = 7200        # seconds that installing a llama.cpp may take
n_predict = 16                 # tokens that each run generates
seed = 7                       # of every run; without it, each night draws one, keeps it when resumed and prints it
threads = 0                    # threads of a cell; 0 means every core
models = ["tiny-Q4_0.gguf", "models/*.gguf"]              # files that are verified as they are
kernels = ["q8_1", "f32", "my_kernel.py:gemm"]            # as --kernel takes them; default: q8_1
hosts = ["cpu"]                # as --host takes them; default: auto
devices = ["CPU"]              # judge llama.cpp's graph on these, as `gguf-verify backend --device`; default: none
keep_reports = "failures"      # which runs' full reports the history keeps: "failures" or "all"
waivers = "waivers.toml"       # known mismatches that do not fail a night until a date, as --waivers takes them

[quantize]                     # more models: llama.cpp quantizes each source to each type
sources = ["tiny-F16.gguf"]
types = ["Q4_0", "Q6_K"]

[prompts]                      # name = text; default: the default prompt of `gguf-verify verify`
story = "Once upon a time"

[variants.NAME]                # one llama.cpp; without keys, the installed one. Default: only the installed one
llama-cpp-python = "0.3.35"    # this version, installed in a virtual environment of its own
cmake-args = "-DGGML_NATIVE=OFF"                          # built with these CMake arguments, likewise
nvrtc = "13.2.78"              # kernels are compiled by this version of NVRTC, of PyPI's nvidia-cuda-nvrtc
repack = true                  # as --repack
reference = "gpu"              # as --reference: cpu, gpu, or a device's name, such as Vulkan0
hosts = ["gpu"]                # replaces the hosts above for this variant
devices = []                   # replaces the devices above for this variant

[variants.VULKAN]              # a build of llama.cpp in a folder; it has cells of devices alone
llama = "llama-vulkan"         # as `gguf-verify backend --llama`
devices = ["CPU", "Vulkan0"]

[[exclude]]                    # cells that match every key of this table are not run
kernel = "f32"                 # any of: model, type, kernel, host, prompt, variant; of a device: "backend", its name
variant = "NAME"
"""
#: Which runs' full reports the history keeps.
KEEP_REPORTS = ("failures", "all")
#: More cells than any night has time for.
MOST_CELLS = 100_000
_MOST_PROMPT = 100_000
_NAME = re.compile(r"[\w.+-]{1,64}")
_VERSION = re.compile(r"\d+(\.\d+)*([a-z]+\d*)?([.+-][\w.]+)?")
#: No command line can hold a NUL.
Text = Annotated[str, Meta(pattern=r"^[^\x00]*$")]
Names = Annotated[list[Text], Meta(min_length=1)]
Seconds = Annotated[float, Meta(ge=1, le=10**6)]


class Quantize(Struct, frozen=True):
    """The table [quantize]: `sources` are patterns of files."""

    sources: Names
    types: Names


class Variant(Struct, frozen=True, rename={"version": "llama-cpp-python", "cmake_args": "cmake-args"}):
    """A table [variants.NAME]: one llama.cpp. Without `version`, `cmake_args` and `llama` it is the installed one, and
    without the first two its Python is."""

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
    """A model: as it is where `type` is "", else quantized to that type."""

    path: Path
    type: str = ""


class ConfigFile(Struct, frozen=True, kw_only=True):
    """What the file says. Names, paths and the inner tables are checked afterwards."""

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
        file: its settings; the fields below stand for what must be looked up first.
        models: all models of the matrix; those that are yet to be quantized have a type.
        prompts: name → text.
        variants: name → llama.cpp.
        known: the waivers of the file that `file.waivers` names.
    """

    path: Path
    file: ConfigFile
    name: str
    history: Path
    models: tuple[Model, ...]
    prompts: dict[str, str]
    variants: dict[str, Variant]
    known: tuple[Waiver, ...] = ()

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
        """The kernel's name for `--kernel`, which works in any folder."""
        path = self.kernel_path(kernel)
        if path is None:
            return kernel
        return f"{path}:{entry}" if (entry := file_of(kernel)[1]) else str(path)

    def build(self, variant: Variant) -> Path | None:
        """The folder of a variant's build of llama.cpp, for `--llama`; None for that of llama-cpp-python."""
        return None if variant.llama is None else self.folder / variant.llama

    def hosts_of(self, variant: Variant) -> dict[str, list[str]]:
        """Each kernel with its hosts in a variant, in the order in which they run; `BACKEND` with its devices."""
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
            auto: the host that "auto" means on this machine.

        Raises UsageError where every cell is excluded.
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
            raise UsageError(f"{printable(self.path.name)}: exclude: leaves no cell of the matrix")
        return tuple(keys)

    def settings(self) -> dict[str, str]:
        """The settings that change what a night means, besides the files: name → value."""
        file = self.file
        return {
            "n_predict": str(file.n_predict), "threads": str(file.threads), "time_limit": f"{file.time_limit:g}",
            "prompts": _digest(self.prompts), "variants": _digest(self.variants),
            "waivers": _digest({w.words: w.reason for w in self.known}),
        }  # fmt: skip


def _digest(named: dict[str, Any]) -> str:
    return hashlib.sha256(repr(sorted(named.items())).encode()).hexdigest()


def read_config(path: Path) -> Config:
    """Read a configuration. Raises UsageError with one line that names the file and the key."""
    table = read_toml(path, "configuration")
    try:
        return _config(path, table)
    except Mistake as error:
        place, what = error.args
        raise UsageError(f"{printable(path.name or str(path))}: {printable(place, 100)}: {what}") from None


def _config(path: Path, table: dict[str, Any]) -> Config:
    file = typed(table, ConfigFile, "")
    folder = path.absolute().parent
    history = folder / file.history
    if history.is_dir() or not history.parent.is_dir():
        raise Mistake("history", f"{printable(str(history), 200)} cannot be a file")
    name = path.stem if file.name is None else file.name
    _check_name("name", name)
    models, prompts, variants = _models(file, folder), _prompts(file.prompts), _variants(file.variants)
    known = () if file.waivers is None else read_waivers(folder / file.waivers)
    config = Config(path, file, name, history, models, prompts, variants, known)
    _check_known("keep_reports", file.keep_reports, KEEP_REPORTS, "nothing is called")
    _check_hosts("hosts", file.hosts)
    _check_kernels(config)
    _check_devices(config)
    _check_exclusions(config)
    hosts = sum(len(named) for variant in config.variants.values() for named in config.hosts_of(variant).values())
    most = len(config.models) * len(config.prompts) * hosts
    if most > MOST_CELLS:
        raise Mistake("models", f"the matrix has {most:,} cells, and at most {MOST_CELLS:,} are allowed")
    config.cells("cpu")
    return config


def _check_name(place: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise Mistake(place, "a name consists of up to 64 letters, digits and . _ + -")


def _once(place: str, values: list[str]) -> list[str]:
    for value in values:
        if not value:
            raise Mistake(place, "contains an empty string")
        if values.count(value) > 1:
            raise Mistake(place, f"contains {printable(value, 60)} twice")
    return values


def _check_known(place: str, value: str, known: Any, what: str) -> None:
    if value not in known:
        raise Mistake(place, f"{what} {printable(value, 60)}; there are: {', '.join(known)}")


def _check_hosts(place: str, hosts: list[str]) -> None:
    for host in _once(place, hosts):
        _check_known(place, host, HOST_CHOICES, "no host is called")


def _check_kernels(config: Config) -> None:
    for kernel in _once("kernels", config.file.kernels):
        path = config.kernel_path(kernel)
        if path is None:
            _check_known(
                "kernels",
                kernel,
                [*FAMILIES, *KERNELS, "FILE.py:NAME", "FILE.cu:SYMBOL", "FILE.toml"],
                "no kernel is called",
            )
        elif not path.is_file():
            raise Mistake("kernels", f"{printable(kernel, 100)}: no such file")


def _check_devices(config: Config) -> None:
    variants = config.variants.items()
    if not config.file.kernels and not config.devices:
        raise Mistake("kernels", "must be a list of length >= 1 where no devices are named")
    named = [("devices", config.file.devices), *((f"variants.{n}.devices", v.devices or []) for n, v in variants)]
    for place, devices in named:
        for device in _once(place, devices):
            if not DEVICE_NAME.fullmatch(device):
                raise Mistake(place, f"{printable(device, 60)} is no name of a device: up to 64 signs without spaces")
    for name, variant in variants:
        place, folder = f"variants.{name}", config.build(variant)
        if folder is not None:
            _check_build(place, variant, folder)
        hosts = variant.hosts or config.file.hosts
        if variant.nvrtc is not None and all(host in HOSTS and HOSTS[host].emulated for host in hosts):
            raise Mistake(f"{place}.nvrtc", "means nothing without a host that compiles by NVRTC")
        if not config.hosts_of(variant):
            raise Mistake(place, "it has no cells: a variant with llama, or without kernels, needs devices")


def _check_build(place: str, variant: Variant, folder: Path) -> None:
    """A build in a folder is one llama.cpp; what says another one, or what kernels alone use, would mean nothing."""
    others = {
        "llama-cpp-python": variant.version, "cmake-args": variant.cmake_args, "nvrtc": variant.nvrtc,
        "hosts": variant.hosts,
        "reference": None if variant.reference == "cpu" else variant.reference,
    }  # fmt: skip
    for key, value in others.items():
        if value is not None:
            raise Mistake(f"{place}.{key}", "means nothing beside llama: such a variant has cells of devices alone")
    found = build_in(folder)
    if isinstance(found, str):
        raise Mistake(f"{place}.llama", printable(found, 300))


def _models(file: ConfigFile, folder: Path) -> tuple[Model, ...]:
    found = [Model(path) for path in _files("models", file.models or [], folder)]
    if file.quantize is not None:
        quantize = typed(file.quantize, Quantize, "quantize")
        for name in _once("quantize.types", quantize.types):
            _check_known("quantize.types", name, FILE_TYPES, "llama.cpp quantizes no file to")
        sources = _files("quantize.sources", quantize.sources, folder)
        found += [Model(path, name) for path in sources for name in quantize.types]
    if not found:
        raise Mistake("models", "the matrix is empty: neither models nor [quantize] names a file")
    names: dict[str, Path] = {}
    for model in found:
        if names.setdefault(model.path.name, model.path) != model.path:
            what = f"two models are called {printable(model.path.name, 60)}, so their cells could not be told apart"
            raise Mistake("models", what)
    return tuple(found)


def _files(place: str, patterns: list[str], folder: Path) -> list[Path]:
    """The files that the patterns match, each once."""
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
    """A table whose keys are names that the user chose."""
    if not table:
        raise Mistake(place, "the table is empty")
    for name in table:
        _check_name(f"{place}.{name}", name)
    return {name: typed(value, kind, f"{place}.{name}") for name, value in table.items()}


def _prompts(table: dict[str, Any] | None) -> dict[str, str]:
    prompts = {"default": DEFAULT_PROMPT} if table is None else _named("prompts", table, Text)
    for name, text in prompts.items():
        if not 0 < len(text.encode()) <= _MOST_PROMPT:
            raise Mistake(f"prompts.{name}", f"a prompt has from 1 to {_MOST_PROMPT:,} bytes")
    return prompts


def _variants(table: dict[str, Any] | None) -> dict[str, Variant]:
    variants = {"installed": Variant()} if table is None else _named("variants", table, Variant)
    for name, variant in variants.items():
        if variant.version is not None and not _VERSION.fullmatch(variant.version):
            raise Mistake(f"variants.{name}.llama-cpp-python", f"{printable(variant.version, 60)} is not a version")
        if variant.nvrtc is not None and not _VERSION.fullmatch(variant.nvrtc):
            raise Mistake(f"variants.{name}.nvrtc", f"{printable(variant.nvrtc, 60)} is not a version")
        if not DEVICE_NAME.fullmatch(variant.reference):
            raise Mistake(f"variants.{name}.reference", f"{printable(variant.reference, 60)} is no device's name")
        _check_hosts(f"variants.{name}.hosts", variant.hosts or [])
    return variants


def _check_exclusions(config: Config) -> None:
    """Each value names something: a rule with a misspelt name would exclude nothing, and nobody would notice."""
    known = {
        "model": {m.path.name for m in config.models}, "type": {m.type for m in config.models if m.type},
        "kernel": [*config.file.kernels, *([BACKEND] if config.devices else [])],
        "host": {*HOSTS, *config.devices}, "prompt": config.prompts, "variant": config.variants,
    }  # fmt: skip
    for i, rule in enumerate(config.file.exclude):
        if not rule:
            raise Mistake(f"exclude[{i}]", "the table is empty and would exclude every cell")
        for name, value in rule.items():
            _check_known(f"exclude[{i}].{name}", name, known, "no part of a cell's key is called")
            names = sorted(printable(known_name, 60) for known_name in known[name])
            _check_known(f"exclude[{i}].{name}", printable(value, 60), names, "nothing is called")
