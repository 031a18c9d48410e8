"""Imports: plugins by entry points, the supported Python, and single modules of packages."""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from importlib.metadata import Distribution, EntryPoint, EntryPoints
from pathlib import Path

import pytest

from gguf_verify.cli import main
from gguf_verify.cli.command import commands, find
from gguf_verify.cli.kernel_options import kernel_options
from gguf_verify.cli.verify import build_parser
from gguf_verify.kernels.domain import Domain
from gguf_verify.report.writer import Kind
from gguf_verify.results.options import Options
from gguf_verify.rungs.plan import plan
from gguf_verify.support import plugins, seeds
from gguf_verify.support.errors import EXIT_ENVIRONMENT, EnvironmentFault, UsageError
from gguf_verify.support.supported import check_machine
from tests.support.nights import run_result
from tests.support.shown import text_of, written
from tests.support.tools import assert_one_line, command_here


def test_commands_of_other_packages_are_listed() -> None:
    assert {"backend", "bisect", "devices", "nightly"} <= set(plugins.offered(plugins.COMMANDS)) <= set(commands())
    found = find("nightly")
    assert found is not None
    assert found.name == "nightly"


def test_a_package_that_is_not_installed_lacks_its_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda **_: EntryPoints([]))
    assert find("nightly") is None
    assert "nightly" not in commands()
    done = command_here("nightly", "run", "x.toml")
    assert (done.returncode, "'nightly' is neither a command nor a file" in done.stderr) == (2, True)


def test_an_entry_point_that_is_no_command_is_not_one(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("mine", "importlib.metadata:Distribution", plugins.COMMANDS)
    assert point.load() is Distribution
    monkeypatch.setattr(metadata, "entry_points", lambda **_: EntryPoints([point]))
    assert find("mine") is None
    assert "mine" not in commands()


@pytest.fixture(params=["import no_such_module", "1 / 0", "COMMAND = None", "def ("])
def broken(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A distribution on the path that offers the command `mine`; the name of the error of its module."""
    folder = tmp_path / "broken_extension-1.2.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-extension\nVersion: 1.2\n")
    (folder / "entry_points.txt").write_text(f"[{plugins.COMMANDS}]\nmine = broken_extension:COMMAND.of\n")
    (tmp_path / "broken_extension.py").write_text(f"{request.param}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken_extension", raising=False)
    errors = {"import": "ModuleNotFoundError", "1": "ZeroDivisionError", "COMMAND": "AttributeError"}
    return errors.get(request.param.split()[0], "SyntaxError")


def test_a_package_that_cannot_be_imported_is_reported(broken: str) -> None:
    done = command_here("--help")
    assert done.returncode == 0
    assert "gguf-verify nightly" in done.stdout
    assert "gguf-verify mine" not in done.stdout
    (line,) = done.stderr.splitlines()
    assert "the package broken-extension 1.2 cannot be imported" in line
    assert f"{broken}: " in line
    assert command_here("nightly", "--help").stderr == ""


def test_its_command_ends_with_the_error(broken: str) -> None:
    said = rf"^gguf-verify: mine \(.*\) of the package broken-extension 1.2 cannot be imported: {broken}: "
    assert_one_line(command_here("mine", "--help"), EXIT_ENVIRONMENT, said)


# ---- supported -------------------------------------------------------------------------------------------------------
# Other systems and processors than the supported ones are refused at the start, in one line.


@pytest.mark.parametrize(
    ("system", "machine", "named", "way"),
    [
        ("Linux", "aarch64", "Linux on aarch64", "Docker with --platform"),
        ("Darwin", "arm64", "macOS on arm64", "Docker with --platform"),
        ("Darwin", "x86_64", "macOS on x86_64", "Docker with --platform"),
        ("Windows", "AMD64", "Windows on AMD64", "WSL2 or Docker"),
        ("Windows", "ARM64", "Windows on ARM64", "Docker with --platform"),
    ],
)  # fmt: skip
def test_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], system: str, machine: str, named: str, way: str
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    with pytest.raises(EnvironmentFault, match=f"Linux on x86-64 processors only, not on {named}"):
        check_machine()
    for command in ([], ["audit"], ["nightly"]):
        assert main([*command, "model.gguf"]) == EXIT_ENVIRONMENT
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.count("\n") == 1
        assert named in said.err
        assert f"run it in {way}" in said.err


def test_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    for machine in ("x86_64", "AMD64"):
        monkeypatch.setattr(platform, "machine", lambda machine=machine: machine)
        check_machine()


# ---- seeds -----------------------------------------------------------------------------------------------------------
# Each run has a seed of its own, which every report prints and which repeats it.


#: The sizes known to a kernel that was made for seed 0: the columns of its plan, and all of few blocks.
KNOWN = {probe.k for probe in plan(Domain(), 32, True, 0)} | {*range(32, 2200, 32)}


def test_runs_have_different_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(seeds.VARIABLE)
    drawn = {Options().seed for _ in range(20)}
    assert len(drawn) > 10
    assert all(0 <= seed <= seeds.MOST_SEED for seed in drawn)
    args = [build_parser().parse_args(["m.gguf"]) for _ in range(20)]
    assert len({kernel_options(one)["seed"] for one in args}) > 10
    assert kernel_options(build_parser().parse_args(["m.gguf", "--seed", "0"]))["seed"] == 0


def test_the_variable_fixes_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(seeds.VARIABLE, "17")
    assert Options().seed == 17
    for wrong in ("-1", "x", "1.5", "9" * 30, "\u0661"):
        monkeypatch.setenv(seeds.VARIABLE, wrong)
        with pytest.raises(UsageError, match=r"GGUF_VERIFY_SEED: .* is not a whole number"):
            Options()


@pytest.mark.parametrize("flag", ["", "--markdown", "--html", "--card", "--json"])
def test_every_report_prints_the_seed(flag: str) -> None:
    report = run_result()
    object.__setattr__(report.environment.options, "seed", 987654321)
    assert "987654321" in (str(written(flag, Kind.RUN, report)) if flag else text_of(Kind.RUN, report, width=80))


def test_no_seed_plans_what_another_does() -> None:
    for seed in range(1, 40):
        planned = plan(Domain(), 32, True, seed)
        assert planned == plan(Domain(), 32, True, seed)
        assert {probe.k for probe in planned} - KNOWN, seed


@pytest.mark.parametrize("unit", [32, 256])
def test_a_brief_plan_has_random_sizes_of_each_dimension(unit: int) -> None:
    """Which the full plan has too, so a kernel that is correct at the planned sizes alone passes neither."""

    def sizes(seed: int, brief: bool) -> list[set[int]]:
        """The numbers of tokens, rows and columns."""
        probes = plan(Domain(), unit, True, seed, brief)
        assert not brief or sum(len(p.tokens) for p in probes) < 40
        return [{m for p in probes for m in p.tokens}, {p.n for p in probes}, {p.k for p in probes}]

    seeds_of_runs = range(40)
    found = [sizes(seed, True) for seed in seeds_of_runs]
    for seed in seeds_of_runs:
        assert all(few <= whole for few, whole in zip(found[seed], sizes(seed, False), strict=True))
    for of_each_seed in zip(*found, strict=True):
        assert len(set.union(*of_each_seed) - set.intersection(*of_each_seed)) > 20
