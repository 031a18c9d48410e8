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
from gguf_verify.support import plugins
from gguf_verify.support.errors import EXIT_ENVIRONMENT, EnvironmentFault
from gguf_verify.support.supported import check_machine
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
    ("system", "machine", "named"),
    [
        ("Linux", "aarch64", "Linux on aarch64"), ("Darwin", "arm64", "macOS on arm64"),
        ("Darwin", "x86_64", "macOS on x86_64"), ("Windows", "AMD64", "Windows on AMD64"),
    ],
)  # fmt: skip
def test_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], system: str, machine: str, named: str
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


def test_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    for machine in ("x86_64", "AMD64"):
        monkeypatch.setattr(platform, "machine", lambda machine=machine: machine)
        check_machine()
