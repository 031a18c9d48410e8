"""The nightly's configuration: the matrix that it gives, and its mistakes."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
import pytest

from gguf_verify import waivers
from gguf_verify.cli import main
from gguf_verify.support.errors import UsageError
from gguf_verify_nightly.config import REFERENCE, ConfigFile, Variant, read_config
from gguf_verify_nightly.records import BACKEND, Key
from tests.support.stub_nights import Q4_0, write_config
from tests.support.tools import FIXTURES, ROOT


def test_the_matrix(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf", "source.gguf"):
        (tmp_path / name).symlink_to(Q4_0)
    (tmp_path / "own.py").write_text("")
    path = tmp_path / "n.toml"
    path.write_text(
        """
        models = ["[ab].gguf", "a.gguf"]
        kernels = ["q8_1", "own.py:gemm"]
        hosts = ["auto", "cpu"]
        [quantize]
        sources = ["source.gguf"]
        types = ["Q4_0", "Q6_K"]
        [prompts]
        one = "1"
        two = "2"
        [variants.plain]
        [variants."0.3.35"]
        llama-cpp-python = "0.3.35"
        hosts = ["gpu"]
        [[exclude]]
        variant = "0.3.35"
        type = "Q6_K"
        [[exclude]]
        kernel = "own.py:gemm"
        """
    )
    config = read_config(path)
    cells = config.cells("cpu")
    models = [("a.gguf", ""), ("b.gguf", ""), ("source.gguf", "Q4_0"), ("source.gguf", "Q6_K")]
    expected = [Key(m, t, "q8_1", "cpu", p, "plain") for m, t in models for p in ("one", "two")]
    expected += [Key(m, t, "q8_1", "gpu", p, "0.3.35") for m, t in models[:3] for p in ("one", "two")]
    assert list(cells) == expected
    assert config.name == "n"
    assert config.history == tmp_path / "nightly.sqlite"
    assert config.kernel_argument("own.py:gemm") == f"{tmp_path}/own.py:gemm"


def a_build(folder: Path) -> Path:
    """What passes for a build of llama.cpp until it is loaded."""
    folder.mkdir()
    for name in ("llama", "ggml", "ggml-base"):
        (folder / f"lib{name}.so").touch()
    return folder


def test_devices_are_an_axis_of_their_own(tmp_path: Path) -> None:
    a_build(tmp_path / "vulkan")
    path = write_config(
        tmp_path,
        """
        kernels = ["q8_1", "f32"]
        devices = ["CPU"]
        [variants.plain]
        [variants.kernels]
        devices = []
        [variants.build]
        llama = "vulkan"
        devices = ["CPU", "Vulkan0"]
        [variants.other]
        llama = "vulkan"
        [[exclude]]
        kernel = "f32"
        [[exclude]]
        kernel = "backend"
        host = "CPU"
        variant = "build"
        """,
    )
    config = read_config(path)
    expected = [
        ("q8_1", "cpu", "plain"), (BACKEND, "CPU", "plain"), ("q8_1", "cpu", "kernels"), (BACKEND, "Vulkan0", "build"),
        (BACKEND, "CPU", "other"),
    ]  # fmt: skip
    assert [(key.kernel, key.host, key.variant) for key in config.cells("gpu")] == expected
    assert config.devices == {"CPU", "Vulkan0"}
    assert config.build(config.variants["build"]) == tmp_path / "vulkan"
    assert config.build(config.variants["plain"]) is None


def test_devices_alone(tmp_path: Path) -> None:
    config = read_config(write_config(tmp_path, "kernels = []\ndevices = ['CPU', 'auto']"))
    assert [(key.kernel, key.host) for key in config.cells("gpu")] == [(BACKEND, "CPU"), (BACKEND, "auto")]
    assert config.hosts == set()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("models = [", "not valid TOML"),
        ("jobz = 1", "jobz: unknown key; known keys: .*jobs"),
        ("jobs = '1'", "jobs: must be a whole number, is '1'"),
        ("jobs = true", "jobs: must be a whole number, is True"),
        ("jobs = 0", "jobs: must be a whole number >= 1, is 0"),
        ("time_limit = nan", "time_limit: must be a number >= 1.0, is nan"),
        ("n_predict = 1.5", "n_predict: must be a whole number"),
        ("name = '../x'", "name: a name has 1 to 64"),
        ("history = '/no/such/folder/h'", "history: .* is not a possible file path"),
        ("keep_reports = 'some'", "keep_reports: unknown value some; choose from: failures, all"),
        ("kernels = ['q9']", "kernels: unknown kernel q9; choose from: .*q8_1"),
        ("kernels = ['own.py:f']", "kernels: own.py:f: no such file"),
        ("kernels = ['q8_1', 'q8_1']", "kernels: contains q8_1 twice"),
        ("kernels = []", "kernels: must not be empty"),
        ("kernels = []\n[variants.a]\ndevices = []", "kernels: must not be empty unless devices"),
        ("kernels = []\ndevices = ['CPU']\n[variants.a]\n[variants.b]\ndevices = []", "variants.b: has no cells"),
        ("devices = ['CPU', 'CPU']", "devices: contains CPU twice"),
        ("devices = ['']", "devices: contains an empty string"),
        ("devices = ['a b']", "devices: a b is not a device name"),
        ("devices = 'CPU'", "devices: must be a list, is 'CPU'"),
        ("[variants.a]\ndevices = [1]", r"variants.a.devices\[0\]: must be a string"),
        ("[variants.a]\ndevices = [\"\\n\"]", r"variants.a.devices: \\x0a is not a device name"),
        ("[variants.a]\nllama = 'no'\ndevices = ['CPU']", "variants.a.llama: .*/no is neither a folder nor "),
        ("[variants.a]\nllama = '.'\ndevices = ['CPU']", "variants.a.llama: .* holds no libllama.so"),
        (f"[variants.a]\nllama = '{'x' * 5000}'\ndevices = ['CPU']", "variants.a.llama: cannot be read .File name"),
        ("[variants.a]\nllama = 1", "variants.a.llama: must be a string"),
        ("[variants.a]\nllama = '.'\nhosts = ['cpu']", "variants.a.hosts: has no effect beside llama"),
        ("[variants.a]\nllama = '.'\nreference = 'gpu'", "variants.a.reference: has no effect beside llama"),
        ("[variants.a]\nllama = '.'\ncmake-args = ''", "variants.a.cmake-args: has no effect beside llama"),
        ("[variants.a]\nllama = '.'\nllama-cpp-python = '1'", "variants.a.llama-cpp-python: has no effect beside"),
        ("[variants.a]\nllama = '.'\nnvrtc = '13.2.78'", "variants.a.nvrtc: has no effect beside"),
        ("[variants.a]\nhosts = ['gpu']\nnvrtc = '../x'", "variants.a.nvrtc: ../x is not a version"),
        ("[variants.a]\nhosts = ['cpu']\nnvrtc = '13.2.78'", "variants.a.nvrtc: has no effect: none of its hosts"),
        ("[[exclude]]\nkernel = 'backend'", r"exclude\[0\].kernel: unknown value backend; choose from: q8_1"),
        ("devices = ['CPU']\n[[exclude]]\nhost = 'CUDA0'", r"exclude\[0\].host: unknown value CUDA0; .*CPU"),
        ("kernels = 'q8_1'", "kernels: must be a list, is 'q8_1'"),
        ("kernels = [1]", r"kernels\[0\]: must be a string, is \[1\]"),
        ("[quantize]\nsources = ['tiny.gguf']\ntypes = ['Q9']", "quantize.types: llama.cpp cannot quantize a file"),
        ("[quantize]\nsources = ['tiny.gguf']", "quantize.types: is missing"),
        ("[quantize]\ntypes = ['Q4_0']", "quantize.sources: is missing"),
        ("quantize = 3", "quantize: must be a table, is 3"),
        ("[prompts]\na = ''", "prompts.a: a prompt must have 1 to 100,000 bytes"),
        ("[prompts]\na = 1", "prompts.a: must be a string"),
        ("[prompts]\n'a b' = 'x'", "prompts.a b: a name has"),
        ("[prompts]\na = \"\\u0000\"", "prompts.a: must be a string matching regex"),
        ("[prompts]", "prompts: the table is empty"),
        ("[variants.a]\nllama-cpp-python = 'latest'", "variants.a.llama-cpp-python: latest is not a version"),
        ("[variants.a]\nllama-cpp-python = '1; rm'", "is not a version"),
        ("[variants.a]\nrepack = 1", "variants.a.repack: must be true or false, is 1"),
        ("[variants.a]\nreference = 'CUDA 0'", "variants.a.reference: CUDA 0 is not a device name"),
        ("[variants.a]\nhosts = ['moon']", "variants.a.hosts: unknown host moon"),
        ("[variants.a]\ncolour = 1", "variants.a.colour: unknown key"),
        ("variants.a = 1", "variants.a: must be a table"),
        ("[variants]", "variants: the table is empty"),
        ("[[exclude]]\nkernel = 'f32'", r"exclude\[0\].kernel: unknown value f32"),
        ("[[exclude]]\ncolour = 'f32'", r"exclude\[0\].colour: unknown key colour"),
        ("[[exclude]]", r"exclude\[0\]: an empty table"),
        ("exclude = [1]", r"exclude\[0\]: must be a table"),
        ("[[exclude]]\nkernel = 'q8_1'", "exclude: excludes every cell of the matrix"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_file_and_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    path = write_config(tmp_path, text)
    assert main(["nightly", "run", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    with pytest.raises(UsageError, match=f"^night.toml: .*{said}"):
        read_config(path)
    assert not (tmp_path / "nightly.sqlite").exists()


@pytest.mark.parametrize(
    ("models", "said"),
    [
        ('["no.gguf"]', "models: no.gguf: no such file"),
        ('["*.bin"]', r"models: \*.bin: no such file"),
        ("[]", "models: must be a list of length >= 1"),
        ('["tiny.gguf", "other/tiny.gguf"]', "models: two models have the file name tiny.gguf"),
        ('["other"]', "models: other: no such file"),
    ],
)
def test_models_that_are_not_there(tmp_path: Path, models: str, said: str) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "tiny.gguf").symlink_to(Q4_0)
    with pytest.raises(UsageError, match=said):
        read_config(write_config(tmp_path, models=models))


def test_no_models_at_all(tmp_path: Path) -> None:
    path = tmp_path / "n.toml"
    path.write_text("jobs = 2")
    with pytest.raises(UsageError, match=r"n.toml: models: the matrix is empty"):
        read_config(path)
    with pytest.raises(UsageError, match=r"cannot read the configuration no\.toml"):
        read_config(tmp_path / "no.toml")
    path.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="not valid TOML"):
        read_config(path)


def test_the_reference_names_every_key(tmp_path: Path) -> None:
    for name in ("tiny-Q4_0.gguf", "tiny-F16.gguf"):
        (tmp_path / name).symlink_to(FIXTURES / name)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "more.gguf").symlink_to(Q4_0)
    (tmp_path / "my_kernel.py").touch()
    a_build(tmp_path / "llama-vulkan")
    (tmp_path / "waivers.toml").write_text(waivers.REFERENCE)
    path = tmp_path / "reference.toml"
    path.write_text(REFERENCE)
    config = read_config(path)
    assert set(tomllib.loads(REFERENCE)) == {f.encode_name for f in msgspec.structs.fields(ConfigFile)}
    variants = tomllib.loads(REFERENCE)["variants"].values()
    assert {key for each in variants for key in each} == {f.encode_name for f in msgspec.structs.fields(Variant)}
    assert {model.type for model in config.models} == {"", "Q4_0", "Q6_K"}
    assert [w.rung for w in config.known] == ["layers", None]
    assert f"```toml\n{REFERENCE}```\n" in (ROOT / "docs" / "nightly.md").read_text()
