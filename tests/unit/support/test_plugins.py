"""Commands and references that other packages offer by entry points."""

from __future__ import annotations

from importlib import metadata
from importlib.metadata import Distribution, EntryPoint, EntryPoints

import pytest

from gguf_verify.cli.command import commands, find
from gguf_verify.support import plugins
from tests.support.tools import command_here


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
