"""Fixtures that several tiers share, the tiers' markers, and the line that says what was skipped.

The tiers are folders: `unit` starts no llama.cpp and takes less than a minute; `reference` compares results with
llama.cpp, with exact arithmetic or with NumPy; `rungs` verifies whole models; `gpu` needs a CUDA device; `meta` tests
the measures of the verifier itself; `fuzz` runs what reads foreign bytes on bytes that nobody would write; `fortress`
attacks the verifier by hostile kernels. Within each tier tests lie as the package does.
"""

from __future__ import annotations

import gc
import os
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, settings

from gguf_verify.audit.readers import Readers
from gguf_verify.gguf.file import Tensor
from gguf_verify.gguf.model import Model, open_model
from gguf_verify.hosts.author_cubin import SWITCH
from gguf_verify.llama.library import Llama
from gguf_verify.support import scratch, seeds
from gguf_verify.support.cache import SIZE_VARIABLE, cache_dir
from tests.support import corpus, kept_processes, needs, validated
from tests.support.blocks_by_hand import Make
from tests.support.kept_processes import KeptLlama, KeptReaders
from tests.support.processor_times import ProcessorTimes
from tests.support.recorded_llama import RecordedLlama
from tests.support.slow_tests import SlowTests

validated.install()

#: In the order in which they run: files of many short tests last, so that parallel runs end together.
TIERS = ("rungs", "fortress", "fuzz", "meta", "reference", "gpu", "unit")

SLOW = SlowTests.read(Path(__file__).parent / "slow.txt")


# The same examples in each run, however long the machine takes for them.
settings.register_profile(
    "repeatable", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")

#: Runs of tests are the same each time: each run would have a seed of its own. Processes that tests start see it too.
os.environ[seeds.VARIABLE] = "0"


def tier_of(path: Path) -> str:
    tier = path.relative_to(Path(__file__).parent).parts[0]
    if tier not in TIERS:
        raise pytest.UsageError(f"{path} is in no tier: {', '.join(sorted(TIERS))}")
    return tier


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require", action="append", default=[], metavar="NEED", choices=sorted(needs.NEEDS),
        help=f"fail, instead of skipping, tests whose need is not met: {', '.join(sorted(needs.NEEDS))}",
    )  # fmt: skip
    parser.addoption(
        "--live", action="store_true", help="start llama.cpp in each verification, instead of replaying its answers"
    )
    parser.addoption(
        "--processor-times", type=Path, metavar="FILE", help="write the processor time of each test to FILE"
    )


def pytest_configure(config: pytest.Config) -> None:
    if cache_dir().is_relative_to(scratch.top()):  # others can write to the home of this user, or nobody can
        folder = Path(tempfile.gettempdir(), f"cache-of-gguf-verify-tests-{os.geteuid()}")
        folder.mkdir(mode=0o700, exist_ok=True)
        os.environ["XDG_CACHE_HOME"] = str(folder)
    # some 20 precompiled headers of 60 MB would drive out the builds that a later run finds again
    os.environ.setdefault(SIZE_VARIABLE, "3G")
    # kernels of tests import examples, which lie in another folder than they
    examples = str(Path(__file__).parents[1] / "examples")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (examples, os.environ.get("PYTHONPATH"))))
    # tests of what CUDA's compiler refuses switch it on; others run what it would refuse, or would be slower
    os.environ.setdefault(SWITCH, "off")
    needs.required.update(config.getoption("--require"))
    if (path := config.getoption("--processor-times")) is not None:
        config.pluginmanager.register(ProcessorTimes(path))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nearly nothing that a collection makes is garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its tier, mark the slow ones, and sort them by tier."""
    tiers = {path: tier_of(path) for path in {item.path for item in items}}
    for item in items:
        item.add_marker(tiers[item.path])
    slow = SLOW.among(item.nodeid for item in items)
    for item in items:
        if item.nodeid in slow:
            item.add_marker("slow")
    items.sort(key=lambda item: TIERS.index(tiers[item.path]))


def pytest_collection_finish() -> None:
    """Tests and what they import stay to the end: garbage collection need not look at them again. It is also rarer than
    by default, since few objects are garbage only it can find."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """Other plugins ask at the end what refers to what."""
    gc.unfreeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        for name in marker.args:
            needs.need(name)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """In a worker of pytest-xdist, of a test that passes only the call is reported. Each message to the other process
    costs about as much as the shortest tests."""
    if not hasattr(item.config, "workerinput"):
        return None
    for report in runtestprotocol(item, nextitem=nextitem, log=False):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Every report and certificate that a test makes is valid by the schema that is shipped, and a test leaves the
    process in the folder where it was: paths in later tests are relative to it."""
    start = item.config.invocation_params.dir
    try:
        yield
    finally:
        found = validated.flaws()
        if (left := os.getcwd()) != str(start):
            os.chdir(start)
            found.append(f"the test left the process in {left}")
    assert not found, "\n".join(found)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, needs.Unmet):
        report.user_properties.append(("need", call.excinfo.value.need))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line: how many tests were skipped for want of what, and what would run them."""
    skipped: list[pytest.TestReport] = terminalreporter.stats.get("skipped", [])
    if not skipped:
        return
    by_need: Counter[str] = Counter()
    others: Counter[str] = Counter()
    for report in skipped:
        properties = dict(report.user_properties)
        if "need" in properties:
            by_need[str(properties["need"])] += 1
        else:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            others[reason.removeprefix("Skipped: ")] += 1
    parts = [f"no {needs.NEEDS[n].what} ({count}; {needs.NEEDS[n].cure})" for n, count in by_need.most_common()]
    parts += [f"{reason} ({count})" for reason, count in others.most_common()]
    terminalreporter.write_line(f"{len(skipped)} skipped: {' · '.join(parts)}")


@pytest.fixture(scope="module", autouse=True)
def leaves_nothing_open() -> Iterator[None]:
    """What a file's tests forgot to close is told of by that file: without this, garbage collection would blame any
    test that runs later, on some days. What is left is in use, and no later collection looks at it."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def llama() -> Iterator[Llama]:
    """llama.cpp's library in its own process."""
    with Llama() as process:
        yield process


@pytest.fixture(scope="session", autouse=True)
def recorded(request: pytest.FixtureRequest) -> Iterator[None]:
    """Unless `--live` is given, verifications in this process replay what llama.cpp answered before. They take over
    processes of llama.cpp and gguf-py, and so do audits and verifications of graphs. These processes end with the last
    test."""
    if request.config.getoption("--live"):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gguf_verify.rungs.session.Llama", RecordedLlama)
        patch.setattr("gguf_verify.rungs.bytes.Readers", KeptReaders)
        patch.setattr("gguf_verify.audit.audit.Llama", KeptLlama)
        patch.setattr("gguf_verify.audit.audit.Readers", KeptReaders)
        patch.setattr("gguf_verify_graph.verification.run.Llama", KeptLlama)
        yield
    kept_processes.end()


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> None:
    """This test starts llama.cpp and the readers in each verification, as with `--live`."""
    for module in ("gguf_verify.rungs.session", "gguf_verify.audit.audit", "gguf_verify_graph.verification.run"):
        monkeypatch.setattr(f"{module}.Llama", Llama)
    for module in ("gguf_verify.rungs.bytes", "gguf_verify.audit.audit"):
        monkeypatch.setattr(f"{module}.Readers", Readers)


@pytest.fixture(scope="session")
def shared_models() -> Path:
    """The folder of the contributors' models, beside the checkout."""
    needs.need("shared-models")
    return needs.SHARED_MODELS


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Writes a file with one tensor of that content, and opens it."""
    models: list[Model] = []

    def tensor(
        type_id: int, shape: list[int], data: bytes, name: str | bytes = "a.weight", file: str = "m.gguf"
    ) -> Tensor:
        path = tmp_path / file
        path.write_bytes(corpus.gguf([], [corpus.info(name, shape, type_id, 0)], [data, bytes(-len(data) % 32)]).data)
        models.append(open_model(path))
        return next(iter(models[-1].tensors.values()))

    yield tensor
    for model in models:
        model.close()
