"""The C++ compiler of this machine, which builds shared libraries over `kernels/` for the cache.

The key of a build consists of the unit, the flags, the compiler, the variables with include paths, and the content of
every file that compiler and assembler read, as they list them themselves (`-MD`). The cache keeps that list under a key
of all the others, and the library under that key and the present digests of the listed files. So a library is never
confused with that of other sources, whichever process writes first.

A build is bytes, from the compiler or from the cache, which verifies their digest: the verified bytes are the ones that
are loaded or linked.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from ..processes.boundary import compiler as folders_of
from ..support import scratch
from ..support.cache import cache_dir, content_of, forget, kept, taken, tree_hash
from ..support.errors import EnvironmentFault
from ..support.paths import kernel_root
from ..support.sealed import load_library, run_on
from ..support.sources import combined, file_digest, of_makefile
from .compilation import failed
from .cuda_text import has_volatile
from .extents import padded, with_extents
from .foreign_sources import as_foreign, read_limited
from .launch_limits import with_limits
from .tables import tables_hash, write_headers

# -ffp-contract=off: a fused multiply-add only occurs where the kernel requests one.
# -fno-strict-aliasing: kernels read packed bytes as words, which nvcc allows.
# -O2 -ftree-vectorize beats -O3 here, which unrolls the short loops over a block before it could vectorize them.
# -fsanitize=float-cast-overflow: kernels/emulator/conversions.hpp stops a launch whose conversion differs on a GPU. It
# also defines `_ROUNDING`.
_ROUNDING = ("lrint", "lrintf", "llrint", "llrintf", "lround", "lroundf", "llround", "llroundf")
FLAGS = [
    "-std=c++17", "-O2", "-ftree-vectorize", "-march=native", "-ffp-contract=off", "-fno-strict-aliasing",
    "-fsanitize=float-cast-overflow", *(f"-fno-builtin-{name}" for name in _ROUNDING), "-fPIC", "-pthread",
]  # fmt: skip

#: Environment variables that change the input or output of GCC or Clang.
_VARIABLES = (
    "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "OBJC_INCLUDE_PATH", "GCC_EXEC_PREFIX", "COMPILER_PATH",
    "LIBRARY_PATH", "SOURCE_DATE_EPOCH", "CCC_OVERRIDE_OPTIONS", "CCC_ADD_ARGS",
)  # fmt: skip
#: A file whose inode changed this long before a compilation was not changed during it, despite the clock's granularity.
_CLOCK_NS = 50_000_000
#: Most attempts to compile sources that change meanwhile.
_MOST_TRIES = 3
#: Limits of a compiler's list of the files that it read, which a foreign source may have inflated: bytes, and files.
_MOST_LISTED, _MOST_FILES = 1 << 22, 10_000
#: A translation unit, in its own folder.
_UNIT = "unit.cpp"
#: Placeholder for the folder of the kernels in a list of files.
_ROOT = "{root}"


class Built(NamedTuple):
    """A shared library or an object, and the files that it was made from besides the unit and the tables.

    `notes` are GCC's on the branches of a unit that counts what it executes; empty for another one. `unseen` are words
    for conversions that a traced unit does not note; "" if it notes all. `comparisons` are those noted, in JSON:
    lists of the fields of `value_comparisons.ValueComparison`.
    """

    content: bytes
    files: tuple[str, ...]
    notes: bytes = b""
    unseen: str = ""
    comparisons: bytes = b""


#: Kinds of builds, each of which has a runner of thread blocks.
RunnerKind = Literal["plain", "checked", "traced"]

#: Compiles a unit below the folder of the kernels with further flags. Raises EnvironmentFault.
Compile = Callable[[Path, str, Sequence[str]], Built]


def compiler() -> str:
    """Return $CXX, or the first of c++, g++ and clang++ that exists. Raises EnvironmentFault if there is none."""
    candidates = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    for name in candidates:
        if path := shutil.which(name):
            return path
    raise EnvironmentFault(f"no C++ compiler found (looked for {', '.join(candidates)}): the CPU host needs one")


def compiler_version() -> str:
    """Return the first line of the compiler's `--version`."""
    return (_said_of_version(compiler()).splitlines() or [compiler()])[0]


@cache
def _said_of_version(path: str) -> str:
    return _run([path, "--version"]).stdout


def _run(
    command: Sequence[str], root: Path | None = None, folder: Path | None = None, shown: Sequence[Path] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a compiler's command to its end. An exception, such as a signal's, ends all its processes.

    Args:
        root: the folder of the source, if it reads one. If that is foreign, the command runs in a sandbox.
        folder: its output folder in the sandbox.
        shown: further folders that it reads.

    Raises EnvironmentFault if a foreign source takes too long, and once the result is no longer needed.
    """
    foreign = None if root is None else as_foreign(root)
    if foreign is not None and folder is not None:
        return foreign.run(command, folder, shown)
    environment = {**os.environ, "TMPDIR": str(scratch.top())}
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment,
        process_group=0,
    )
    try:
        out, errors = _said_by(process)
    except BaseException:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return subprocess.CompletedProcess(command, process.returncode, out, errors)


def _said_by(process: subprocess.Popen[str]) -> tuple[str, str]:
    from ..support import threads  # only here: an untrusted child compiles nothing

    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=_LOOK if threads.may_be_over() else None)
        if threads.is_over():
            raise EnvironmentFault("the compilation is no longer needed")


#: Seconds between two looks at whether a compilation is still needed.
_LOOK = 0.1


@cache
def cpu_name() -> str:
    """Return model and architecture of the processor, which -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        named = {k.strip(): v.strip() for k, v in fields.items()}
        return f"{named.get('model name', platform.machine())} ({platform.machine()})"
    except OSError:
        return platform.processor() or platform.machine()


def build(
    root: Path, unit: str, options: Sequence[str] = (), rebuild: bool = False, how: Compile | None = None
) -> bytes:
    """Return the shared library of a translation unit, compiled unless the cache has it.

    Args:
        root: the folder of the kernels. It is on the include path, as are the tables of `gguf_verify.hosts.tables`.
        unit: C++ source.
        options: further flags, after `FLAGS`.
        rebuild: compile even if the cache has it.
        how: the compiling function; None: `_compile`. The result of `_object` is an object.

    Raises EnvironmentFault with the compiler's first error, or if a source changes while it is compiled.
    """
    if FOREIGN in unit:
        return build_foreign(root, unit, options, how).content
    key, suffix = _build_key(root, unit, options, how), ".o" if how is _object else ".so"
    with _one_at_a_time(key):
        files = None if rebuild else _listed(key)
        if files is not None and (content := taken(_entry(key, files, root), suffix)) is not None:
            return content
        built = _bound(root, unit, options, how or _compile)
        _list(key, built.files, root)
        return kept(_entry(key, built.files, root), suffix, built.content)


#: Key of a build → the lock of the thread that makes it; none after a fork, which leaves that thread behind.
_under_way: dict[tuple[str, ...], threading.Lock] = {}
os.register_at_fork(after_in_child=_under_way.clear)


def _one_at_a_time(key: tuple[str, ...]) -> threading.Lock:
    """Return a lock for a build: what another thread has begun to compile is waited for."""
    return _under_way.setdefault(key, threading.Lock())


def build_foreign(root: Path, unit: str, options: Sequence[str] = (), how: Compile | None = None) -> Built:
    """Compile a foreign source. A file that was looked for and not found, and exists now, is in no list of the files
    that were read: so it is compiled each time. The arguments and errors are those of `build`."""
    built = _bound(root, unit, options, how or _compile)
    _note(root, built.files, options, how)
    return built


def _note(root: Path, files: Iterable[str], options: Sequence[str], how: Compile | None) -> None:
    """Note the files read for a foreign source.

    Includes of the emulator itself belong to the host: the compiler's version identifies them.
    """
    if (foreign := as_foreign(root)) is None:
        return
    special = CHECKS if how is _compile_checked else TRACES if how is _compile_traced else ()
    flags = _flags_of_prelude([*special, *options])
    hosts = set(_listed(_precompiled_key(_WITH_PRELUDE, flags)) or ())
    foreign.note(path for path in files if not path.startswith(f"{_ROOT}/") and path not in hosts)


def _build_key(root: Path, unit: str, options: Sequence[str], how: Compile | None) -> tuple[str, ...]:
    special = () if how is None else (how.__name__, *CHECKS)
    # modules that modify a compiler's output
    writers = (Path(__file__).with_name(name) for name in ("compiler.py", "elf.py", "extents.py", "launch_limits.py"))
    ours = combined((module.name, file_digest(module)) for module in writers)
    return (tree_hash(root), tables_hash(), ours, unit, *FLAGS, *options, *special, *_compiler_key())


def _compiler_key() -> tuple[str, ...]:
    """Return everything about the compiler that a build depends on."""
    set_ = [f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ]
    where = [os.getcwd()] if set_ else []  # an empty or relative entry means this folder
    return compiler(), _said_of_version(compiler()), cpu_name(), *set_, *where


def _list(key: Sequence[str], files: Sequence[str], root: Path) -> bool:
    """Cache the list of files, unless one of them cannot be read: then the build cannot be found again."""
    readable = all(file_digest(path) is not None for path in files)
    if readable:
        names = [path.replace(f"{root}/", f"{_ROOT}/", 1) if path.startswith(f"{root}/") else path for path in files]
        kept(key, ".json", json.dumps(names).encode())
    return readable


def _listed(key: Sequence[str]) -> tuple[str, ...] | None:
    """Return the list that `_list` cached; None if there is none, or it is damaged."""
    with contextlib.suppress(ValueError, RecursionError):
        names = json.loads(taken(key, ".json") or b"null")
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            return tuple(names)
    return None


def _entry(key: Sequence[str], files: Iterable[str], root: Path) -> tuple[str, ...]:
    """Return the key of a build from the present content of these files. Their names may begin with `_ROOT`."""
    digests = []
    for path in files:
        inside = path.removeprefix(f"{_ROOT}/") if path.startswith(f"{_ROOT}/") else path.removeprefix(f"{root}/")
        name = path if inside == path else f"{_ROOT}/{inside}"
        digests.append((name, file_digest(path if inside == path else root / inside)))
    return (*key, combined(digests))


def _bound(root: Path, unit: str, options: Sequence[str], how: Compile) -> Built:
    """Return the result of `how` for files that did not change meanwhile. Raises EnvironmentFault."""
    known = {str(path) for path in root.rglob("*") if path.is_file()}
    for _ in range(_MOST_TRIES):
        before = {os.path.realpath(path): file_digest(path) for path in known}
        start = time.time_ns()
        built = how(root, unit, options)
        if all(_unchanged(path, before, start) for path in built.files):
            return built
        known |= set(built.files)
    raise EnvironmentFault("the sources of a kernel changed during compilation")


def _unchanged(path: str, before: dict[str, str | None], start: int) -> bool:
    """Return whether the compiler read a file's present content: it is unchanged, or older than the compilation."""
    real = os.path.realpath(path)
    if real in before:
        return before[real] == file_digest(path)
    with contextlib.suppress(OSError):
        return os.stat(path).st_ctime_ns < start - _CLOCK_NS
    return False


#: Marks the unit of a foreign source. `emulator/foreign.hpp` precedes it, without being named in the unit.
FOREIGN = "// a foreign source\n"
_PRELUDE = "foreign.hpp"
_WITH_PRELUDE = f'#include "emulator/{_PRELUDE}"\n'
_CHECKED, _TRACED = "-DCUDA_ON_CPU_CHECKS", "-DGGUF_VERIFY_TRACED"


def precompiled(flags: Sequence[str] = (), foreign: bool = False) -> Path | None:
    """Return a header with GCC's precompiled form beside it, in the run's scratch folder.

    It is a copy of `emulator/standard.hpp`, or a header that includes the prelude. None if the compiler is not GCC or
    could not precompile it. GCC uses the precompiled form if the header is the first one included. If flags, macros or
    its own version have changed, it reads the text instead.

    Args:
        flags: further flags, after `FLAGS`; the only macros among them may be `_CHECKED` and `_TRACED`.
        foreign: whether it is the prelude of foreign sources.
    """
    if not _is_gcc():
        return None
    text = _WITH_PRELUDE if foreign else (kernel_root() / "emulator" / "standard.hpp").read_text()
    key = _precompiled_key(text, flags)
    files = _listed(key)
    entry = None if files is None else _entry(key, files, kernel_root())
    header = None if entry is None else _copies.get(entry)
    if header is not None and _made_of(header).exists():
        return header
    content = None if entry is None else taken(entry, ".gch")
    if content is None:
        found = _precompile(text, key, flags)
        if found is None:
            return None
        entry, content = found
    assert entry is not None
    folder = scratch.folder("precompiled")
    header = _copies[entry] = folder / "standard.hpp"
    header.write_text(text)
    _made_of(header).write_bytes(content)
    return header


#: Entry of the cache → this process's copy of the header; the precompiled form is next to it.
_copies: dict[tuple[str, ...], Path] = {}


def _precompile(text: str, key: Sequence[str], flags: Sequence[str]) -> tuple[tuple[str, ...], bytes] | None:
    """Precompile a header and cache it; return its key and content.

    None if it cannot be compiled, or could not be found again.
    """
    with scratch.temporary("compile") as folder:
        source, built, listed = (folder / f"standard.{suffix}" for suffix in ("hpp", "hpp.gch", "d"))
        source.write_text(text)
        command = [compiler(), *FLAGS, *flags, f"-I{kernel_root()}", "-x", "c++-header", str(source)]
        command += ["-o", str(built), *_listing(listed)]
        start = time.time_ns()
        if _run(command).returncode:
            return None
        files = _read_files(listed, folder)
        if not all(_unchanged(path, {}, start) for path in files) or not _list(key, files, kernel_root()):
            return None
        entry = _entry(key, files, kernel_root())
        return entry, kept(entry, ".gch", built.read_bytes())


def _not_precompiled(header: Path) -> None:
    """Remove a precompiled header that the compiler could not use."""
    _made_of(header).unlink(missing_ok=True)
    for entry, path in list(_copies.items()):
        if path == header:
            del _copies[entry]
            forget(entry, ".gch")


def _precompiled_key(text: str, flags: Sequence[str]) -> tuple[str, ...]:
    return ("precompiled", text, *FLAGS, *flags, *_compiler_key())


def _made_of(header: Path) -> Path:
    return header.with_suffix(".hpp.gch")


def _listing(path: Path) -> list[str]:
    """Return flags that have the compiler list every file that it reads, including the system's."""
    return ["-MD", "-MF", str(path), "-MT", "made"]


def _read_files(listed: Path, folder: Path) -> tuple[str, ...]:
    """Return the files that the compiler or the assembler listed, except those in the temporary folder, which are in
    the key.
    """
    text = read_limited(listed, _MOST_LISTED).decode(errors="surrogateescape")
    found = of_makefile(text)
    if len(found) > _MOST_FILES:
        raise EnvironmentFault(f"a kernel's source includes more than {_MOST_FILES:,} files")
    return tuple(dict.fromkeys(os.path.abspath(p) for p in found if not p.startswith(f"{folder}/")))


def _read_by_assembler(listed: Path, folder: Path, sources: Iterable[str]) -> tuple[str, ...]:
    """Return the files that the assembler listed for a foreign source.

    Clang's own assembler has no list, so no source may use it to read a file. Raises EnvironmentFault.
    """
    if _is_gcc():
        # GCC's assembler also lists the source under its name without the folder.
        return tuple(
            path for path in _read_files(listed, folder) if path != os.path.abspath(_UNIT) or os.path.isfile(path)
        )
    for path in sources:
        if b"incbin" in read_limited(Path(path)):
            raise EnvironmentFault(
                f"{Path(path).name} reads a file by .incbin, which {compiler_version()} does not list: set CXX to GCC"
            )
    return ()


def _is_gcc() -> bool:
    return "Free Software Foundation" in _said_of_version(compiler())


def _compile(root: Path, unit: str, options: Sequence[str]) -> Built:
    """Compile the unit, and link it with the runner of blocks, which is compiled once, without options of one unit."""
    plain = [
        option for option in _plain(options) if not option.startswith("-std=") and option not in (*WAITS, *BRANCHES)
    ]
    return _linked(root, unit, options, _RUNNER, plain, [*plain, *_of_linker(options)])


def _compile_checked(root: Path, unit: str, options: Sequence[str]) -> Built:
    """Compile the unit with instrumentation, and the runner without."""
    link = [*LINK_CHECKED, *_of_linker(options)]
    return _linked(root, unit, [*CHECKS, *options], _CHECKED_RUNNER, (), link, checked=True)


def _compile_traced(root: Path, unit: str, options: Sequence[str]) -> Built:
    """Compile the unit so that it notes the operands of its comparisons, and the runner without that."""
    link = [*LINK_CHECKED, *_of_linker(options)]
    return _linked(root, unit, [*TRACES, *options], _TRACED_RUNNER, (), link)


#: Folder of headers with CUDA's names, below that of a foreign source.
CUDA_HEADERS = "cuda-headers"
_IN_EMULATOR = re.compile(r'(#[ \t]*include[ \t]*")((?:\.\./)+)')


def emulator_of(root: Path, foreign: bool) -> Path:
    """Return the folder of the emulator below that of the sources.

    Beside a foreign source, its name is this user's secret, so that no condition of the source (`__has_include`) can
    name a file in it.
    """
    return root / (f"emulator-{_secret()}" if foreign else "emulator")


@cache
def _secret() -> str:
    path = cache_dir() / "emulator-name"
    with contextlib.suppress(OSError):
        with contextlib.suppress(FileExistsError), open(path, "x", opener=_private) as file:
            file.write(secrets.token_hex(16))
        if re.fullmatch("[0-9a-f]{32}", known := path.read_text()):
            return known
    return secrets.token_hex(16)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def copy_emulator(root: Path) -> None:
    """Copy the emulator to the place where a foreign source below `root` is compiled with it."""
    ours, emulator = kernel_root() / "emulator", emulator_of(root, True)
    for header in ours.rglob("*.h*"):
        below, text = header.relative_to(ours), header.read_text()
        copy = emulator / below
        if below.parts[0] == "include":  # its path to the emulator differs from that for our own kernels
            copy = root / CUDA_HEADERS / below.relative_to("include")
            text = _IN_EMULATOR.sub(lambda found: f"{found[0]}{emulator.name}/", text)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text)


def runner_object(root: Path, kind: RunnerKind = "plain") -> bytes:
    """Return the runner's object of a kind of builds, to link with the objects of units. Raises EnvironmentFault."""
    unit = {"plain": _RUNNER, "checked": _CHECKED_RUNNER, "traced": _TRACED_RUNNER}[kind]
    return build(root / "emulator", unit, how=_object)


#: The library that all others of kernels need, except checked ones (`kernels/emulator/of_thread.hpp`). The loader knows
#: it by this name once a process has loaded it.
_OF_THREAD = "gguf-verify-of-thread.so"


def library_of_thread() -> bytes:
    """Return the content of that library. Raises EnvironmentFault."""
    named = f"-Wl,-soname,{_OF_THREAD}"
    return build(kernel_root() / "emulator", '#include "of_thread.hpp"\n', [named], how=compile_alone)


def compile_alone(root: Path, unit: str, options: Sequence[str]) -> Built:
    """Compile a unit that runs no blocks into a library. Raises EnvironmentFault."""
    made = _object(root, unit, [option for option in options if option not in _of_linker(options)])
    with scratch.temporary("link") as folder:
        compiled, built = folder / "unit.o", folder / "unit.so"
        compiled.write_bytes(made.content)
        command = [
            compiler(),
            str(compiled),
            "-shared",
            "-pthread",
            "-Wl,-z,defs",
            *_of_linker(options),
            "-o",
            str(built),
        ]
        done = _run(command, root, folder)
        if done.returncode:
            raise _failed(done, command, unit)
        return Built(read_limited(built), made.files)


def _linked(
    root: Path,
    unit: str,
    options: Sequence[str],
    runner: str,
    options_of_runner: Sequence[str],
    link: Sequence[str],
    checked: bool = False,
) -> Built:
    from ..support.threads import beside  # only here: an untrusted child compiles nothing

    foreign = FOREIGN in unit
    emulator = (kernel_root() if foreign else root) / "emulator"

    def parts() -> tuple[bytes, bytes]:
        made = build(emulator, runner, options_of_runner, how=_object)
        return made, b"" if checked else library_of_thread()

    with beside(parts) as of_emulator:  # each can take as long as the unit
        made = _object(root, unit, options)
        content_of_runner, content_of_thread = of_emulator()
    with scratch.temporary("link") as folder:
        built, compiled, of_runner = folder / "unit.so", folder / "unit.o", folder / "runner.o"
        compiled.write_bytes(padded(made.content) if checked else made.content)
        of_runner.write_bytes(content_of_runner)
        linked = [str(compiled), str(of_runner)]
        if not checked:
            of_thread = folder / _OF_THREAD
            of_thread.write_bytes(content_of_thread)
            linked.append(str(of_thread))
        # The linker detects a file's type from its content.
        counters = LINK_COUNTING if COUNTS[0] in options else []
        command = [compiler(), *linked, "-shared", "-pthread", *link, *counters, "-o", str(built)]
        done = _run(command, root, folder)
        if done.returncode:
            raise _failed(done, command, unit)
        # those of the runner are part of the kernels; a foreign source does not read them
        read = () if foreign else _listed(_build_key(emulator, runner, options_of_runner, _object)) or ()
        files = [path.replace(f"{_ROOT}/", f"{emulator}/", 1) for path in read]
        library = read_limited(built)
        if checked:
            library = with_extents(library, made.content)
        if foreign:
            library = with_limits(library, made.content)
        return Built(library, tuple(dict.fromkeys([*made.files, *files])), made.notes, made.unseen, made.comparisons)


def _object(root: Path, unit: str, options: Sequence[str]) -> Built:
    """Compile an object for a shared library."""
    with scratch.temporary("compile") as folder:
        source = folder / _UNIT
        compiled, text, listed, of_assembler = (folder / f"unit.{suffix}" for suffix in ("o", "s", "d", "s.d"))
        source.write_text(unit)
        write_headers(folder)
        foreign = FOREIGN in unit
        plain = _flags_of_prelude(options) if foreign else _plain(options)
        emulator = emulator_of(root, foreign)
        headers = root / CUDA_HEADERS if foreign else emulator / "include"
        folders = [f"-I{root}", f"-I{headers}", f"-I{folder}"]
        apart = COUNTS[0] in options and platform.machine() == "x86_64"
        to = ["-S", str(source), "-o", str(text)] if apart else ["-c", str(source), "-o", str(compiled)]
        command = [compiler(), *FLAGS, *folders, *options, *to]
        command += ["-fno-diagnostics-show-caret", *_listing(listed)]
        # The assembler lists the files of `.incbin` and `.include`, which the compiler does not see. With a pipe, since
        # the list would otherwise name the compiler's temporary file.
        listing = ["-pipe", f"-Wa,--MD,{of_assembler}"] if foreign and _is_gcc() else []
        command += [] if apart else listing
        dump, dumping = folder / "unit.dump", list[str]()
        if foreign and _TRACED in options:
            from .value_comparisons import DUMPS  # only here: most processes compile no such unit

            dumping = [f"{DUMPS}{dump}"]
        command += dumping
        # The emulator's own units are compiled once: precompiling a header takes longer than it saves of them.
        header = None if root.name == "emulator" else precompiled(plain, True) if foreign else precompiled(plain)
        of_header = tuple[str, ...]()
        noted, unseen = False, ""
        if header and _TRACED in options:
            from .conversion_notes import Noting  # only here: most processes compile no such unit

            plain_command = [compiler(), *FLAGS, *folders, *options, *dumping, "-include", str(header), *listing]
            shown = [header.parent, *folders_of(compiler())]  # a shell runs it, too
            noting = Noting(plain_command, f"{root}/cpu/", lambda of: _run(of, root, folder, shown))
            # the unit must still be compiled without notes, if they take too long
            with contextlib.nullcontext() if (of := as_foreign(root)) is None else of.half():
                noted, unseen = noting.compile(source, compiled, _listing(source.with_suffix(".d")))
        if noted:
            pass
        elif header and _run([*command, "-include", str(header)], root, folder, [header.parent]).returncode == 0:
            # GCC does not list the files of a precompiled header.
            # A foreign source need not name them: they are the emulator's, and its object is not kept.
            of_header = () if foreign else _listed(_precompiled_key(header.read_text(), plain)) or ()
        else:
            command += ["-include", str(emulator / _PRELUDE)] if foreign else []
            done = _run(command, root, folder)  # again, so that errors only concern the unit
            if done.returncode:
                raise _failed(done, command, unit)
            if header and as_foreign(root) is None:  # the precompiled header is damaged
                _not_precompiled(header)
        if apart:
            # names and inline assembly may hold any bytes
            text.write_text(_with_own_counters(text.read_text("latin-1")), "latin-1")
            assembles = [compiler(), *folders, *listing, "-c", str(text), "-o", str(compiled)]
            if (done := _run(assembles, root, folder)).returncode:
                raise _failed(done, assembles, unit)
        read = _read_files(listed, folder)
        also = _read_by_assembler(of_assembler, folder, read) if foreign else ()
        notes = read_limited(compiled.with_suffix(".gcno")) if COUNTS[0] in options else b""
        comparisons = _listed_comparisons(dump, f"{root}/cpu/") if foreign and _TRACED in options else b""
        return Built(read_limited(compiled), (*read, *also, *of_header), notes, unseen, comparisons)


def _listed_comparisons(dump: Path, authors: str) -> bytes:
    """Return the comparisons in GCC's dump of a unit, as JSON; nothing if it has none."""
    from .value_comparisons import MOST_DUMPED, comparisons_in

    with contextlib.suppress(EnvironmentFault):  # a version without such a dump, or a very large one
        text = read_limited(dump, MOST_DUMPED).decode("latin-1")
        return json.dumps(comparisons_in(text, authors)).encode()
    return b""


#: An operand that is a counter of gcov.
_COUNTER = re.compile(r"(?<![\w.$+-])((?:-?\d+\+)?__gcov\d+\.[\w.$]+\(%rip\))")


#: Tells the runner, `kernels/emulator/runner.hpp`.
_OWN = (
    ".section .rodata", ".globl gguf_verify_own_counters", ".hidden gguf_verify_own_counters",
    "gguf_verify_own_counters:", ".byte 1",
)  # fmt: skip


def _with_own_counters(assembly: str) -> str:
    """Return the assembly of x86-64 with each counter at its address + the base of segment GS, so that each
    operating-system thread can have its own. Threads that share them would wait for each other at each count.
    """
    lines = assembly.split("\n")
    # what is counted at an address in a register cannot be seen; those of the emulator are not read
    if any("\tlea" in line and "__gcov" in line and "cuda_on_cpu" not in line for line in lines):
        return assembly
    return "\n".join([*(_COUNTER.sub(r"%gs:\1", line) for line in lines), *_OWN, ""])


def as_without_flags(options: Sequence[str]) -> list[str]:
    """Return lines that give the compiler's predefined macros the values of nvcc's host compiler.

    That compiler gets none of our options. So a source cannot detect the CPU host by the processor, the optimization or
    the instrumentation.
    """
    standard = tuple(option for option in options if option.startswith("-std="))
    used = (option for option in options if option.startswith(("-f", "-O", "-std=")))
    plain, ours = (_predefined(compiler(), flags) for flags in (("-std=c++17", *standard), (*FLAGS, *used)))
    lines = [f"#undef {name}" for name, value in ours.items() if plain.get(name) != value]
    return lines + [f"#define {name} {value}" for name, value in plain.items() if ours.get(name) != value]


@cache
def _predefined(path: str, flags: tuple[str, ...]) -> dict[str, str]:
    listed = _run([path, *flags, "-dM", "-E", "-x", "c++", os.devnull]).stdout.splitlines()
    found = (line.removeprefix("#define ").partition(" ") for line in sorted(listed))
    return {name: value for name, _, value in found if "(" not in name}


def _plain(options: Sequence[str]) -> list[str]:
    """Return the options that are no macro, folder, warning or linker option.

    A precompiled header and the runner must be compiled with the same ones.
    """
    return [option for option in options if not option.startswith(("-D", "-I", "-W", *APART, *COUNTS, NOT_COUNTED))]


def _flags_of_prelude(options: Sequence[str]) -> list[str]:
    """Return the options that the precompiled prelude of a foreign source must have as well."""
    return [*_plain(options), *(macro for macro in (_CHECKED, _TRACED) if macro in options)]


#: Put each function and each variable in its own section, so that the linker can omit unused ones, and `launch_limits`
#: can see which ones a kernel uses.
APART = ("-ffunction-sections", "-fdata-sections")
#: Linker options that only resolve called functions.
ONLY_CALLED = ("-Wl,--gc-sections", "-Wl,-z,defs")


def _of_linker(options: Sequence[str]) -> list[str]:
    return [option for option in options if option.startswith("-Wl,")]


def _failed(done: subprocess.CompletedProcess[str], command: Sequence[str], unit: str) -> EnvironmentFault:
    """Return the error of a failed compilation."""
    what = unit.partition("\n")[0].removeprefix("#include ").removeprefix("// ").strip('"')
    said = done.stderr.splitlines() or [f"exit code {done.returncode}"]
    return failed(f"{command[0]} could not compile {what}", said)


def sound_library(root: Path, unit: str, options: Sequence[str] = (), how: Compile | None = None) -> bytes:
    """Return the result of `build` that loads: a cached library that does not is rebuilt, once.

    Raises EnvironmentFault.
    """
    return _loaded(root, unit, options, how)[0]


def _loaded(root: Path, unit: str, options: Sequence[str], how: Compile | None) -> tuple[bytes, ctypes.CDLL]:
    content = build(root, unit, options, how=how)
    if how is None:
        load_of_thread()
    try:
        return content, load_library(content)
    except OSError:
        content = build(root, unit, options, True, how)
    try:
        return content, load_library(content)
    except OSError as error:
        why = str(error).partition(": ")[2] or error
        raise EnvironmentFault(f"a compiled kernel cannot be loaded: {why}") from None


@cache
def load_of_thread() -> ctypes.CDLL:
    """Load `library_of_thread` into this process. Raises EnvironmentFault, and OSError if it does not load."""
    return load_library(library_of_thread())


#: Options of a checked build: GCC calls functions before accesses, which `kernels/emulator/callbacks.hpp` defines.
CHECKS = [
    "-O1", "-g1", "-fdata-sections", _CHECKED,
    "-fsanitize=thread,alignment,signed-integer-overflow,shift-exponent,integer-divide-by-zero,unreachable,return,"
    "object-size",
    "-fsanitize-coverage=trace-pc", "--param=tsan-distinguish-volatile=1",
]  # fmt: skip
#: Options of an ordinary build if a kernel may wait by volatile reads: the same functions let other threads run.
WAITS = ("-fsanitize=thread", "--param=tsan-distinguish-volatile=1", "--param=tsan-instrument-func-entry-exit=0")
#: Options of a build that counts how often it takes each branch, and those that link it. The files of the emulator and
#: of the system are not counted. Several operating-system threads may lose counts, but never the first one.
COUNTS = (
    "-fprofile-arcs", "-ftest-coverage", "-fprofile-info-section=gguf_verify_counters", "-fprofile-update=single",
)  # fmt: skip
NOT_COUNTED = "-fprofile-exclude-files="
#: Options with which there are as many branches as in the source: counted before inlining, without selections in place
#: of branches, and without || of values that are both computed.
BRANCHES = ("-fno-early-inlining", "-fno-ssa-phiopt", "--param=logical-op-non-short-circuit=0")
#: Options of a traced build: GCC calls functions before comparisons, which `kernels/emulator/comparisons.hpp` defines.
#: Without reassociation, which makes one comparison of several with 0.
TRACES = (
    "-O1", "-g1", *BRANCHES[1:], "-fno-tree-reassoc", "-fsanitize-coverage=trace-cmp", _TRACED,
)  # fmt: skip
LINK_COUNTING = ["-lgcov", "-Wl,-u,__gcov_info_to_gcda"]
LINK_CHECKED = ["-Wl,-z,defs", "-Wl,-Bsymbolic"]
_RUNNER = '#include "runner.hpp"\n'
_CHECKED_RUNNER = f"#define CUDA_ON_CPU_CHECKS\n{_RUNNER}"
_TRACED_RUNNER = f"#define CUDA_ON_CPU_COMPARISONS\n{_RUNNER}"


def waits(texts: Iterable[str], options: Sequence[str]) -> tuple[str, ...]:
    """Return `WAITS` if one of these sources has volatile variables.

    () if the options enable another checker, and if the compiler is not GCC.
    """
    if not _is_gcc() or any(option.startswith("-fsanitize=") for option in options):
        return ()
    return WAITS if any(map(has_volatile, texts)) else ()


def checks_fault() -> str | None:
    """Return why kernels cannot be checked here, or None if they can."""
    if not _is_gcc():
        return f"{compiler_version()} is not GCC"
    return None if platform.system() == "Linux" else "the system is not Linux"


@cache
def counts_fault() -> str | None:
    """Return why code that is compiled here does not count what it executes, or None if it does."""
    version = _gcc_version()
    if version is None:
        return f"{compiler_version()} is not GCC"
    if version < 12:
        return f"GCC {version} is older than 12"
    return None if gcov() is not None else "gcov, which is a part of GCC, is not installed"


def _gcc_version() -> int | None:
    """Return the major version of GCC, or None if the compiler is another one."""
    found = re.search(r"\b(\d+)\.\d+\.\d+", (_said_of_version(compiler()).splitlines() or [""])[0])
    return int(found[1]) if found and _is_gcc() else None


@cache
def gcov() -> str | None:
    """Return the path of the gcov of the compiler's version; None if it is not installed."""
    beside = Path(compiler()).resolve().parent
    for name in (f"gcov-{_gcc_version()}", "gcov"):
        for path in (shutil.which(name), shutil.which(name, path=str(beside))):
            if path and re.search(rf"\b{_gcc_version()}\.\d+\.\d+", _said_of_version(path).partition("\n")[0]):
                return path
    return None


def counted(root: Path) -> list[str]:
    """Return the options of a build of a foreign source that counts; none if this compiler cannot."""
    ours = "|".join(re.escape(str(path)) for path in (kernel_root(), emulator_of(root, True), root / CUDA_HEADERS))
    return [] if counts_fault() else [*COUNTS, *BRANCHES, f"{NOT_COUNTED}{ours}|/usr/.*"]


def build_checked(root: Path, unit: str, options: Sequence[str] = ()) -> bytes:
    """Build the library that `checked_library` loads. Raises EnvironmentFault."""
    return build(root, unit, options, how=_compile_checked)


def build_traced(root: Path, unit: str, options: Sequence[str] = ()) -> Built:
    """Build a library of a foreign source that notes the operands of its comparisons. Raises EnvironmentFault."""
    return build_foreign(root, unit, options, _compile_traced)


def checked_library(root: Path, unit: str, options: Sequence[str] = ()) -> tuple[ctypes.CDLL, str]:
    """Build and load a library that checks for faults as it runs: the unit with instrumentation, the runner without.

    Returns the library, and its name for `source_lines`. Raises EnvironmentFault.
    """
    content, library = _loaded(root, unit, options, _compile_checked)
    return library, hashlib.sha256(content).hexdigest()


def source_lines(library: str | Path, addresses: Sequence[int]) -> list[list[str]]:
    """Return FILE:LINE of the calls before these addresses of a checked library, each followed by its inlining chain.

    Empty lists if not known, or if the cache no longer has the library.

    Args:
        library: its name from `checked_library`; or its path, if this process got it as a file.
    """
    tool = shutil.which("addr2line")
    if tool is None or not addresses:
        return [[] for _ in addresses]
    content = library.read_bytes() if isinstance(library, Path) else content_of(library, ".so")
    if content is None:
        return [[] for _ in addresses]
    done = run_on(content, [tool, "-a", "-i", "-e"], [hex(max(0, address - 1)) for address in addresses])
    found: list[list[str]] = []
    for line in (line.split(" (")[0].strip() for line in done.stdout.splitlines()):
        if line.startswith("0x"):  # an address, which its lines follow
            found.append([])
        elif found and line and not line.startswith("?") and not line.endswith((":?", ":0")):
            found[-1].append(line)
    return found if len(found) == len(addresses) else [[] for _ in addresses]


def shared_library(root: Path, unit: str, options: Sequence[str] = (), how: Compile | None = None) -> ctypes.CDLL:
    """Return `sound_library`, loaded. Raises EnvironmentFault."""
    return _loaded(root, unit, options, how)[1]
