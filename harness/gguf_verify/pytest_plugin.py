"""`pytest --gguf MODEL.gguf --gguf-kernel KERNEL`: one test for each matrix of the model, and fixtures, for a kernel's
own tests.

A matrix's test passes if the layers rung judged its GEMMs and found nothing wrong. It is skipped if the graph has no
product with the matrix, and it is an error if a product should have been checked and could not be, such as one that was
not run since the kernel had hung in others. One more test fails if the kernel was never called. Options that
are not given have the command line's defaults.

All tests read the report of one run. Of several matrices that are wrong for one cause, the first test prints the
message, and the others refer to it. With xdist, the worker that first needs the run makes it; the others wait for its
report. pytest imports this module in every session, so its functions import what they need.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import re
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .support import scratch
from .support.blas import load_numpy

if TYPE_CHECKING:
    from _pytest._code.code import TerminalRepr

    from .results.options import Options
    from .results.report import Report
    from .support.errors import HarnessError
    from .support.settings import Settings
    from .verification.climb import Event

_SHARED = pytest.StashKey[Path]()
_CLAIM = "gguf-verify"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gguf-verify")
    group.addoption("--gguf", metavar="MODEL.gguf", help="verify each GEMM of this model against llama.cpp")
    group.addoption(
        "--gguf-kernel", metavar="KERNEL", help="the kernel to verify: a name, FILE.py:NAME or FILE.cu:SYMBOL"
    )
    group.addoption("--gguf-host", metavar="HOST", default="auto", help="where the kernel runs, as --host takes it")
    group.addoption(
        "--gguf-effort",
        choices=("quick", "full", "thorough"),
        help="how thorough, as --effort takes it (default: full)",
    )
    group.addoption("--gguf-tensor", metavar="REGEX", help="verify only tensors whose name matches")
    group.addoption("--gguf-prompt", metavar="TEXT", help="the prompt whose activations are multiplied")
    group.addoption("--gguf-probes", choices=("full", "brief"), help=argparse.SUPPRESS)  # of the previous release
    group.addoption(
        "--gguf-kernel-time-limit", type=float, metavar="SECONDS", help="of one call, as --kernel-time-limit takes it"
    )
    group.addoption(
        "--gguf-seed", type=int, metavar="N", help="the seed, as --seed takes it (default: a new one for each run)"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """With `--gguf`, load NumPy as the command does, before a conftest.py or a test loads it: idle threads of its BLAS
    would spin beside the run."""
    if getattr(early_config.known_args_namespace, "gguf", None):
        load_numpy()


# ---- fixtures --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def gguf_model(request: pytest.FixtureRequest) -> Path:
    """The model of `--gguf`. A test suite with a model of its own overrides this fixture in its conftest.py."""
    given = request.config.getoption("--gguf")
    if not given:
        pytest.fail("no model is given: --gguf MODEL.gguf, or a fixture gguf_model that returns it", pytrace=False)
    return Path(given)


@pytest.fixture(scope="session")
def gguf_kernel(request: pytest.FixtureRequest) -> Any:
    """The kernel of `--gguf-kernel`, for `verify`. A test suite may override this fixture, too."""
    given = request.config.getoption("--gguf-kernel")
    if not given:
        pytest.fail(
            "no kernel is given: --gguf-kernel KERNEL, or a fixture gguf_kernel that returns one", pytrace=False
        )
    return given


@pytest.fixture
def verify_kernel(request: pytest.FixtureRequest) -> Callable[..., Report]:
    """A function that verifies a kernel and fails the test unless everything is verified.

    verify_kernel(kernel=None, model=None, rungs=None, host=None, **options) returns the `Report`. What is None is that
    of `gguf_kernel`, `gguf_model`, the command line's rungs and `--gguf-host`; `options` are fields of
    `gguf_verify.Options`, such as tensor="attn_q", probes="brief" or prompt="Once upon a time".
    """

    def run(
        kernel: Any = None, model: Path | str | None = None, rungs: list[str] | None = None, host: str | None = None,
        **options: Any,
    ) -> Report:  # fmt: skip
        __tracebackhide__ = True
        from .verification import verify

        kernel = request.getfixturevalue("gguf_kernel") if kernel is None else kernel
        model = request.getfixturevalue("gguf_model") if model is None else model
        host = request.config.getoption("--gguf-host") if host is None else host
        report = verify(model, kernel, host, rungs, _options(request.config, **options))
        report.raise_for_mismatch()
        return report

    return run


def _options(config: pytest.Config, **other: Any) -> Options:
    """The command line's defaults, except for the settings of the project and the given options."""
    from .results.options import EFFORTS, Options

    settings = _settings(config)
    chosen: dict[str, Any] = dict(EFFORTS[config.getoption("--gguf-effort") or "full"])
    chosen |= {} if settings is None else settings.of_options
    if config.getoption("--gguf-probes") is not None:
        chosen["probes"] = config.getoption("--gguf-probes")
    if config.getoption("--gguf-seed") is not None:
        chosen["seed"] = config.getoption("--gguf-seed")
    if config.getoption("--gguf-kernel-time-limit") is not None:
        chosen["kernel_time_limit"] = config.getoption("--gguf-kernel-time-limit")
    if config.getoption("--gguf-prompt") is not None:
        chosen["prompt"] = config.getoption("--gguf-prompt")
    return Options(**(chosen | other))


def _settings(config: pytest.Config) -> Settings | None:
    """The settings of the project in which pytest was started."""
    from .support.errors import UsageError
    from .support.settings import read_settings

    try:
        return read_settings(config.invocation_params.dir)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_report_header(config: pytest.Config) -> list[str]:
    """The settings, and advice on an option of the previous release."""
    settings = _settings(config)
    said = [] if settings is None else [f"gguf-verify: {settings.words}"]
    old = config.getoption("--gguf-probes")
    now = f"gguf-verify: --gguf-probes={old} is now --gguf-effort={'quick' if old == 'brief' else old}"
    return [*said, *([] if old is None else [now])]


# ---- xdist -----------------------------------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    """A worker of xdist uses the scratch folder of the process that started it, and leaves none."""
    given = getattr(config, "workerinput", {}).get("gguf_scratch")
    if given is not None:
        scratch.join(Path(given))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of xdist the folder in which the workers share their run."""
    if node.config.getoption("--gguf"):
        if _SHARED not in node.config.stash:
            node.config.stash[_SHARED] = scratch.folder("pytest")
        node.workerinput["gguf_shared"] = str(node.config.stash[_SHARED])
        node.workerinput["gguf_scratch"] = str(scratch.top())


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the shared folder at the end, in the process that made it."""
    if _SHARED in config.stash:
        scratch.remove_folder(config.stash[_SHARED])


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The result of `--gguf` in one line, and the checks that it skipped."""
    for report in (*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")):
        for name, said in report.user_properties:
            if name == _CLAIM:
                terminalreporter.write_line(f"gguf-verify: {said}")


# ---- one test a matrix -----------------------------------------------------------------------------------------------


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> _Model | None:
    """The model of `--gguf`, where an argument selects it or its tests by their ids."""
    if parent.session.isinitpath(file_path) and file_path == _path(parent.config):
        return _Model.of(parent)
    return None


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """All tests of the model, unless an argument selects some."""
    path = _path(config)
    if path is not None and not session.isinitpath(path):
        items.extend(_Model.of(session).collect())


def _path(config: pytest.Config) -> Path | None:
    """That of `--gguf`, absolute, as pytest makes the path of an argument so."""
    given = config.getoption("--gguf")
    return Path(os.path.abspath(config.invocation_params.dir / given)) if given else None


class _Model(pytest.File):
    """The model's matrices, and the report of one run over all of them. It is a file, and the kernel stands where
    pytest has a test's parameters, so an id that pytest prints (`tiny-Q4_0.gguf::blk.0.attn_q[my_kernel.py:gemm]`) is
    an argument that selects the test."""

    @classmethod
    def of(cls, parent: pytest.Collector) -> _Model:
        """The model of `--gguf`."""
        from .support.text import printable

        path = _path(parent.config)
        nodeid = printable(os.path.relpath(path or "", parent.config.rootpath))  # as pytest, but escaped
        made: _Model = cls.from_parent(parent, path=path, nodeid=nodeid)
        return made

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str | TerminalRepr:
        if isinstance(excinfo.value, pytest.UsageError):
            return str(excinfo.value)
        return super().repr_failure(excinfo)

    def collect(self) -> Iterator[pytest.Item]:
        from .gguf.matrices import may_be_matrix
        from .gguf.model import open_model
        from .hosts.choice import HOST_CHOICES, host_named
        from .kernels.families import DEFAULT_KERNEL
        from .support.errors import HarnessError
        from .support.text import printable

        option = self.config.getoption
        if host_named(option("--gguf-host")) not in HOST_CHOICES:
            raise pytest.UsageError(f"--gguf-host: choose one of {', '.join(HOST_CHOICES)}")
        try:
            pattern = re.compile(option("--gguf-tensor") or "")
            with open_model(option("--gguf")) as model:
                names = [n for n, t in model.tensors.items() if may_be_matrix(t) and pattern.search(n)]
        except (HarnessError, re.error, OSError) as error:
            raise pytest.UsageError(f"--gguf: {error}") from None
        if not names:
            raise pytest.UsageError("--gguf: the model has no matrix to verify")
        self._found: Report | HarnessError | None = None
        kernel = printable((option("--gguf-kernel") or DEFAULT_KERNEL).rpartition("/")[2], 120)
        yield _Called.from_parent(self, name=f"kernel-was-called[{kernel}]")
        for name in names:
            short = name.removesuffix(".weight")  # pytest's summary cuts long lines, and the cause is at their end
            shown = printable(name if short in names else short, 64).replace("::", ":")  # pytest divides ids at "::"
            item: Any = _Matrix.from_parent(self, name=f"{shown}[{kernel}]")
            item.tensor = name
            yield item

    def _verified(self) -> Report:
        """The report of the layers rung for all selected matrices. Raises HarnessError."""
        from .kernels.families import DEFAULT_KERNEL
        from .support.errors import EnvironmentFault
        from .verification import verify

        option = self.config.getoption
        kernel, host = option("--gguf-kernel") or DEFAULT_KERNEL, option("--gguf-host")
        with _progress(self.config) as told:
            options = _options(self.config, tensor=option("--gguf-tensor"), progress=told is not None)
            report = verify(option("--gguf"), kernel, host, ["layers"], options, told=told or (lambda _: None))
        if report.fault:
            raise EnvironmentFault(report.fault)
        return report

    def found(self) -> Report:
        """The report of the run over all selected matrices, which is made once. Raises HarnessError."""
        from .support.errors import HarnessError

        if self._found is None:
            folder = getattr(self.config, "workerinput", {}).get("gguf_shared")
            try:
                self._found = self._verified() if folder is None else self._shared(Path(folder))
            except HarnessError as error:
                self._found = error
        if isinstance(self._found, HarnessError):
            raise self._found
        return self._found

    def _shared(self, folder: Path) -> Report:
        """That report, of whichever worker of xdist comes first. Raises HarnessError."""
        from .read_report import from_json

        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel ends it with the process, whatever becomes of that
            made = folder / "report.json"
            if made.exists():
                return from_json(made.read_bytes())
            report = self._verified()
            part = folder / "part"
            part.write_text(report.to_json())
            part.replace(made)
        return report

    def first_like(self, report: Report, tensor: str) -> _Matrix | None:
        """The first test of the session whose matrix fails for the same cause, if that is known."""
        from .report.run_words import causes

        known = causes(report)
        cause = known.get(tensor)
        tests = (item for item in self.session.items if isinstance(item, _Matrix) and item.parent is self)
        return next((item for item in tests if cause and known.get(item.tensor) == cause), None)


@contextlib.contextmanager
def _progress(config: pytest.Config) -> Iterator[Callable[[Event], None] | None]:
    """With -v, the display of a run's events on the terminal, beside which bars show the tensor that is being judged.
    None without -v, and in a worker of xdist, which has no terminal."""
    capture, terminal = (config.pluginmanager.get_plugin(name) for name in ("capturemanager", "terminalreporter"))
    if config.get_verbosity() < 1 or terminal is None or hasattr(config, "workerinput"):
        yield None
        return
    from .report.terminal.console import rendered
    from .report.terminal.run import rung_line
    from .report.writer import Form
    from .verification.climb import RungEnds

    def told(event: Event) -> None:
        if isinstance(event, RungEnds):
            terminal.write(f"gguf-verify: {rendered([rung_line(event.result, Form())], Form())}")

    with contextlib.nullcontext() if capture is None else capture.global_and_fixture_disabled():
        terminal.write_line("gguf-verify: one run for all matrices")
        terminal.flush()
        yield told


class _Item(pytest.Item):
    parent: _Model

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str | TerminalRepr:
        """The message; pytest's own reports show its cause beside the test's name."""
        if not isinstance(excinfo.value, _Wrong):
            return super().repr_failure(excinfo)
        made = excinfo.getrepr(style="value")
        if made.reprcrash is not None:  # else of this module
            made.reprcrash.path, made.reprcrash.lineno = self.config.getoption("--gguf"), 1
            made.reprcrash.message = excinfo.value.cause
        return made

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, f"{self.path.name}: {self.name}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """pytest asks a test how its failure looks, but not how a failure of its setup does."""
    report = yield
    if isinstance(item, _Item) and call.excinfo is not None and call.when == "setup":
        report.longrepr = item.repr_failure(call.excinfo)
    return report


class _Called(_Item):
    """Whether the kernel multiplied anything at all: else every matrix could be skipped, and the suite pass."""

    def runtest(self) -> None:
        report = _asked(self.parent.found)
        skipped = ", ".join(check.title for check in report.skipped)
        said = f"{report.words}; seed {report.environment.options.seed}; skipped: {skipped or 'nothing'}"
        self.user_properties.append((_CLAIM, said))
        rung, kernel = report.rungs[0], report.environment.kernel
        if not any(record.under_test for record in rung.gemms) and not rung.failures:
            why = [f"{left.title}: {left.why}" for left in rung.unverified[:5]] + ([rung.fault] if rung.fault else [])
            covers = ", ".join(kernel.covers) or "no type"
            words = f"kernel {kernel.name} was never called: it multiplies {covers}"
            raise _Wrong("\n".join([words, *why]), "the kernel was never called")


class _Matrix(_Item):
    tensor: str

    @property
    def shown(self) -> str:
        """The id in pytest's summary: from the folder in which pytest was started."""
        from .support.text import printable

        return f"{printable(os.path.relpath(self.path, self.config.invocation_params.dir))}::{self.name}"

    def setup(self) -> None:
        """An unverified matrix has not failed: it is pytest's error."""
        from .report.message import of_cause, of_run

        try:
            report = _asked(self.parent.found)
        except _Wrong:  # there is no report: the test fails, and its setup does not
            return
        if not self._fails(report) and any(u.tensor in (self.tensor, "") for u in report.rungs[0].unverified):
            raise _Wrong(of_run(report, self.tensor), of_cause(report, self.tensor))

    def _fails(self, report: Report) -> bool:
        """Whether anything is wrong with this matrix, or with no matrix in particular."""
        result = report.rungs[0]
        return bool(result.fault) or any(result.failing.get(tensor) for tensor in (self.tensor, ""))

    def runtest(self) -> None:
        from .report.message import like_another, not_diagnosed, of_cause, of_run

        report = _asked(self.parent.found)
        judged = [record for record in report.rungs[0].gemms if record.tensor == self.tensor]
        if self._fails(report):
            first = self.parent.first_like(report, self.tensor)
            if first is None or first is self:
                words = not_diagnosed(report, self.tensor) or of_run(report, self.tensor)
            else:
                words = like_another(report, self.tensor, first.shown)
            raise _Wrong(words, of_cause(report, self.tensor))
        if not judged:
            pytest.skip("the graph has no product with this matrix")
        if not any(record.under_test for record in judged):
            pytest.skip(f"it was multiplied by {judged[0].kernel}, which is not the kernel under test")


def _asked(make: Callable[[], Report]) -> Report:
    """A report; where there is none, why is the failure."""
    from .support.errors import HarnessError

    try:
        return make()
    except HarnessError as error:
        raise _Wrong(str(error), str(error)) from None


class _Wrong(Exception):
    """Why a matrix is not verified, or was not checked.

    Args:
        message: as the test prints it.
        cause: in a few words, for pytest's summary.
    """

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        self.cause = cause
