"""Settings of the user's project: what a file may set, and what it must not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gguf_verify.cli.command import commands
from gguf_verify.cli.common import add_common
from gguf_verify.cli.parser import Parser
from gguf_verify.cli.verify import build_parser
from gguf_verify.support.errors import UsageError
from gguf_verify.support.settings import read_settings
from gguf_verify_nightly.config import read_config
from tests.support.tools import FIXTURES, assert_one_line, command_here

pytest_plugins = ["pytester"]
MODEL = FIXTURES / "tiny-Q4_0.gguf"
ALL = """\
sandbox = "bubblewrap"
time-limit = 300
kernel-time-limit = 120.5
kernel-memory = 4
ray = "local"
import = ["my_ops", "more"]
load = ["build/libops.so"]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def parsed(*words: str) -> dict[str, object]:
    return vars(build_parser().parse_args(["m.gguf", *words]))


def test_every_key_is_the_default_of_its_option(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "gguf-verify.toml").write_text(ALL)
    args = parsed()
    assert {name: args[name] for name in ("sandbox", "time_limit", "kernel_time_limit", "kernel_memory", "ray")} == {
        "sandbox": "bubblewrap", "time_limit": 300, "kernel_time_limit": 120.5, "kernel_memory": 4, "ray": "local",
    }  # fmt: skip
    assert (args["imports"], args["loads"]) == (("my_ops", "more"), (str(folder / "build" / "libops.so"),))
    said = capsys.readouterr().err
    assert said.startswith(
        f"gguf-verify: settings of {folder / 'gguf-verify.toml'}: sandbox bubblewrap; time-limit 300"
    )
    assert len(said.splitlines()) == 1


def test_the_command_line_wins(folder: Path) -> None:
    (folder / "gguf-verify.toml").write_text(ALL)
    args = parsed("--sandbox", "none", "--kernel-memory", "8", "--import", "other", "--ray", "none")
    assert (args["sandbox"], args["kernel_memory"], args["imports"], args["ray"]) == ("none", 8, ("other",), None)


def test_the_nearest_file_is_read_and_pyproject_only_if_it_has_the_table(folder: Path) -> None:
    inside = folder / "a" / "b"
    inside.mkdir(parents=True)
    (folder / "pyproject.toml").write_text("[tool.gguf-verify]\nkernel-memory = 1\n")
    (folder / "a" / "pyproject.toml").write_text('[project]\nname = "x"\n')
    found = read_settings(inside)
    assert found is not None
    assert (found.path, found.values) == (folder / "pyproject.toml", {"kernel_memory": 1})
    (folder / "a" / "gguf-verify.toml").write_text("kernel-memory = 2\n")
    (folder / "a" / "pyproject.toml").write_text("[tool.gguf-verify]\nkernel-memory = 3\n")
    nearer = read_settings(inside)
    assert nearer is not None
    assert nearer.values == {"kernel_memory": 2}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kernel_memory = 1", "kernel_memory: unknown key; known keys: sandbox, time-limit"),
        ('kernel-memory = "1"', "kernel-memory: must be a number"),
        ("kernel-memory = 0.1", "kernel-memory"),
        ("time-limit = nan", "time-limit"),
        ("time-limit = true", "time-limit: must be a number"),
        ('import = "torch"', "import: must be a list"),
        ('import = [""]', "import: contains an empty string"),
        ("x = [", "not valid TOML"),
        ('waivers = "w.toml"', "waivers: unknown key"),
        ('effort = "quick"', "effort: unknown key"),
        ('llama = "build"', "llama: unknown key"),
    ],
)
def test_a_wrong_key_or_value_is_one_line(folder: Path, text: str, said: str) -> None:
    (folder / "gguf-verify.toml").write_text(f"{text}\n")
    assert_one_line(command_here(MODEL, "--rungs", "bytes"), 2, said)
    (folder / "gguf-verify.toml").unlink()
    (folder / "pyproject.toml").write_text(f"[tool.gguf-verify]\n{text}\n")
    assert_one_line(command_here(MODEL, "--rungs", "bytes"), 2, said)


@pytest.mark.parametrize("name", ["gguf_verify", "gguf-verfy", '"GGUF-Verify"', "ggufverify"])
def test_a_table_of_nearly_the_name_is_one_line(folder: Path, name: str) -> None:
    """Its author expects settings; of others' files it is no concern."""
    path = folder / "pyproject.toml"
    path.write_text(f'[tool.{name}]\nsandbox = "bubblewrap"\n')
    with pytest.raises(UsageError, match=r"is not read; did you mean \[tool.gguf-verify\]"):
        read_settings()
    path.chmod(0o666)
    assert read_settings() is None
    path.chmod(0o644)
    path.write_text('[tool.gguf-report]\n[tool.verify]\n[tool.gguf]\n[tool."gguf_verify-report"]\n')
    assert read_settings() is None


@pytest.mark.parametrize("mode", ["none", "landlock", "off"])
def test_a_file_cannot_lower_the_isolation(folder: Path, mode: str) -> None:
    """A kernel from a stranger may lie beside a file of theirs."""
    (folder / "gguf-verify.toml").write_text(f'sandbox = "{mode}"\n')
    for command in ([str(MODEL)], ["kernel", "k.py:gemm"], ["audit", str(MODEL)], ["devices"]):
        assert_one_line(command_here(*command), 2, "a file cannot lower the isolation")


@pytest.mark.parametrize("address", ["auto", "ray://evil:10001", "10.0.0.1:6379"])
def test_a_file_cannot_choose_a_cluster(folder: Path, address: str) -> None:
    (folder / "gguf-verify.toml").write_text(f'ray = "{address}"\n')
    assert_one_line(command_here(MODEL), 2, "a file cannot choose a cluster")


def test_a_file_that_others_may_write_is_ignored(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "gguf-verify.toml"
    path.write_text("kernel-memory = 1\n")
    path.chmod(0o666)
    assert read_settings(folder) is None
    assert "is ignored: others may write it" in capsys.readouterr().err
    path.chmod(0o644)
    assert read_settings(folder) is not None
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345)
        assert read_settings(folder) is None
        assert "is ignored: it belongs to another user" in capsys.readouterr().err


def test_a_stricter_sandbox_is_honoured_in_any_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inside = folder / "a"
    inside.mkdir()
    (inside / "gguf-verify.toml").write_text('kernel-memory = 1\nsandbox = "bubblewrap"\n')
    (inside / "gguf-verify.toml").chmod(0o666)
    found = read_settings(inside)
    assert found is not None
    assert found.values == {"sandbox": "bubblewrap"}
    assert "is ignored, except for sandbox bubblewrap: others may write it" in capsys.readouterr().err
    (folder / "gguf-verify.toml").write_text('sandbox = "auto"\nkernel-memory = 2\n')
    found = read_settings(inside)
    assert found is not None
    assert found.values == {"sandbox": "bubblewrap", "kernel_memory": 2}


@pytest.mark.parametrize("name", ["gguf-verify.toml", "pyproject.toml"])
def test_settings_that_cannot_be_read_are_an_error(folder: Path, name: str) -> None:
    path, large = folder / name, folder / "large"
    large.write_text("#" * 3_000_000)
    makers = (
        os.mkfifo, os.mkdir, lambda p: p.symlink_to("nowhere"), lambda p: p.symlink_to(p), large.rename,
        lambda p: p.symlink_to("/dev/zero"),
    )  # fmt: skip
    for make in makers:
        make(path)
        with pytest.raises(UsageError) as caught:
            read_settings(folder)
        assert (str(path) in str(caught.value), caught.value.id) == (True, "settings")
        path.rmdir() if path.is_dir() else path.unlink()
    assert read_settings(folder) is None


def test_an_error_in_the_file_of_another_project_is_no_concern(folder: Path) -> None:
    (folder / "pyproject.toml").write_text("this is [ no TOML")
    assert read_settings(folder) is None


@pytest.mark.parametrize("flag", ["-h", "--help", "-V"])
def test_help_needs_no_settings(folder: Path, flag: str) -> None:
    (folder / "gguf-verify.toml").write_text("x = [")
    with pytest.raises(SystemExit) as caught:
        parsed(flag)
    assert caught.value.code == 0
    with pytest.raises(UsageError, match=f"{folder}/gguf-verify.toml: not valid TOML"):
        parsed()


def test_a_long_value_hides_no_key(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "gguf-verify.toml").write_text(f'import = ["{"a" * 5000}"]\nload = ["{"b" * 5000}"]\nray = "local"\n')
    parsed()
    said = capsys.readouterr().err
    assert "ray local; import aaa" in said
    assert "; load /" in said
    assert len(said) < 1000


def test_jobs_of_the_command_line_replace_ray_of_the_file(folder: Path) -> None:
    (folder / "gguf-verify.toml").write_text('ray = "local"\n')
    assert (parsed("-j", "2")["ray"], type(parsed()["ray"])) == (None, str)
    assert parsed("-j", "2", "--ray", "local")["ray"] == "local", "which is an error later"
    assert commands()["nightly"].parser().parse_args(["run", "n.toml", "-j", "2"]).ray == "local"


def test_commands_that_run_nothing_read_no_settings(folder: Path) -> None:
    (folder / "gguf-verify.toml").write_text("x = [")
    assert command_here("explain", "kernel").returncode == 0
    parser = Parser(prog="x")
    add_common(parser)
    with pytest.raises(UsageError):
        parser.parse_args([])


def test_a_night_takes_the_settings_of_its_folder(folder: Path) -> None:
    (folder / "night.toml").write_text(f'models = ["{MODEL}"]\nhosts = ["CPU"]\n')
    before = read_config(folder / "night.toml")
    assert (before.project, before.file.hosts) == (None, ["cpu"])
    (folder / "gguf-verify.toml").write_text(ALL)
    night = read_config(folder / "night.toml")
    assert night.project is not None
    assert night.project.flags(("sandbox", "imports")) == ("--sandbox=bubblewrap", "--import=my_ops,more")
    assert night.settings() != before.settings(), "a night with other settings is not resumed"


def test_pytest_reads_the_settings(pytester: pytest.Pytester) -> None:
    pytester.makefile(".toml", **{"gguf-verify": "kernel-time-limit = 7\nimport = ['a']\n"})
    pytester.makepyfile(
        """
        def test_it(request):
            from gguf_verify.pytest_plugin import _options

            options = _options(request.config)
            assert (options.kernel_time_limit, options.imports) == (7, ("a",))
            assert _options(request.config, kernel_time_limit=3).kernel_time_limit == 3
        """
    )
    done = pytester.runpytest_subprocess("-p", "gguf_verify.pytest_plugin")
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines(["*settings of */gguf-verify.toml: kernel-time-limit 7*"])
