"""A captured product, judged: right ones pass, wrong ones fail, nothing is no pass, and foreign arrays are checked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_verify.captured import Judged, judge_captured, judge_case
from gguf_verify.gguf.model import open_model
from gguf_verify.report.writer import Kind
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.narrow import BFLOAT16
from gguf_verify.support.errors import MalformedFile, NothingToVerify, UsageError
from tests.support.shown import last_line, text_of
from tests.support.tools import FIXTURES, assert_one_line, command_here

MODEL, TENSOR, M, N, K = FIXTURES / "tiny-Q4_0.gguf", "blk.0.attn_q.weight", 5, 256, 256


class Case:
    """Activations, and the right outputs of a definition, rounded to float32."""

    def __init__(self) -> None:
        self.x = np.random.default_rng(3).standard_normal((M, K)).astype(np.float32)
        with open_model(MODEL) as model:
            tensor = model.tensors[TENSOR]
            self.rows = np.array(tensor.raw.reshape(tensor.n_rows, -1))
            self.fmt = tensor.type.weights

    def y(self, definition: str) -> np.ndarray:
        semantics = SEMANTICS[definition]
        return product(semantics, self.fmt, self.rows, semantics.bytes_of(self.x)).exact.astype(np.float32)


@pytest.fixture(scope="module")
def case() -> Case:
    return Case()


@pytest.mark.parametrize("definition", ["q8_1", "mmq", "q8_0_cpu", "f32"])
def test_the_definition_that_fits_is_found(case: Case, definition: str) -> None:
    judged = judge_captured(MODEL, TENSOR, case.x, case.y(definition), threads=1)
    assert judged
    assert definition in judged.fitting
    assert judged.definition == judged.fitting[0]
    assert set(judged.fitting) <= (
        {"mmq", "q8_0_cpu"} if definition in ("mmq", "q8_0_cpu") else {definition, "f32_apart"}
    )
    assert (judged.outputs, judged.wrong, judged.first) == (M * N, 0, None)
    assert judged.utilisation < 1


@pytest.mark.parametrize("share", [1.0, 0.0])
def test_half_outputs_that_all_underflow_are_not_verified(case: Case, share: float) -> None:
    """Zeros are their rounding: whatever the engine computes, nothing was measured."""
    x = (case.x * 1e-9).astype(np.float32)
    y = product(SEMANTICS["f32"], case.fmt, case.rows, SEMANTICS["f32"].bytes_of(x)).exact
    judged = judge_captured(MODEL, TENSOR, x, (share * y).astype(np.float16), "f32", threads=1)
    assert (judged.exit_code, judged.wrong) == (5, 0)
    assert any("underflow" in why for why in judged.left)


def test_a_claim_is_held_to(case: Case) -> None:
    y = case.y("mmq")
    assert judge_captured(MODEL, TENSOR, case.x, y, "mmq", threads=1)
    judged = judge_captured(MODEL, TENSOR, case.x, y, "q8_1", threads=1)
    assert (judged.exit_code, judged.claimed, judged.definition) == (1, "q8_1", "q8_1")
    assert any("mmq" in line for line in judged.lines)


def test_one_wrong_output_is_found_with_its_place(case: Case) -> None:
    y = case.y("q8_1")
    y[3, 200] *= 1.001
    judged = judge_captured(MODEL, TENSOR, case.x, y, threads=1)
    assert (judged.exit_code, judged.wrong, judged.definition) == (1, 1, "q8_1")
    assert judged.first is not None
    assert (judged.first.token, judged.first.row) == (3, 200)
    with open_model(MODEL) as model:
        assert judged.first.byte_offset == model.tensors[TENSOR].block_offset(200, 0)
    assert "row 200 token 3" in str(judged)


def test_a_known_fault_is_named(case: Case) -> None:
    """The offset of the codes is missing."""
    semantics = SEMANTICS["q8_1"]
    right = product(semantics, case.fmt, case.rows, semantics.bytes_of(case.x)).exact
    blocks = semantics.bytes_of(case.x).reshape(M, -1, 36)
    s = blocks[:, :, 2:4].copy().view(np.float16)[..., 0].astype(np.float64)
    d = case.rows.reshape(N, -1, 18)[:, :, :2].copy().view(np.float16)[..., 0].astype(np.float64)
    judged = judge_captured(MODEL, TENSOR, case.x, (right + 8 * s @ d.T).astype(np.float32), threads=1)
    assert judged.exit_code == 1
    assert judged.faults
    assert any("Fix: " in line for line in judged.lines)


@pytest.mark.parametrize("definition", ["q8_1", "mmq", "f32"])
def test_two_exchanged_rows_are_named(case: Case, definition: str) -> None:
    """The other rows show the engine's definition, however far off these two are."""
    y = case.y(definition)
    y[:, [5, 9]] = y[:, [9, 5]]
    judged = judge_captured(MODEL, TENSOR, case.x, y, threads=1)
    assert (judged.exit_code, judged.wrong, judged.definition) == (1, 2 * M, definition)
    assert [fault.id for fault in judged.faults] == ["rows-exchanged"]
    assert "row 5 gets that of 9, row 9 gets that of 5" in str(judged)


def test_rows_of_a_tensor(case: Case) -> None:
    y = case.y("q8_1")[:, 10:20]
    assert judge_captured(MODEL, TENSOR, case.x, y, rows=(10, 20), threads=1)
    assert judge_captured(MODEL, TENSOR, case.x, y, rows=(11, 21), threads=1).exit_code == 1
    for rows in ((0, 0), (5, 3), (-1, 9), (0, N + 1)):
        with pytest.raises(UsageError, match="rows"):
            judge_captured(MODEL, TENSOR, case.x, y, rows=rows)


def test_outputs_that_were_rounded_to_halves(case: Case) -> None:
    y = case.y("q8_1").astype(np.float16)
    judged = judge_captured(MODEL, TENSOR, case.x, y, threads=1)
    assert (judged.exit_code, judged.output, judged.definition) == (0, "float16", "q8_1")
    at, away = int(np.abs(y).argmax()), np.float16(np.inf)
    y.flat[at] = np.nextafter(np.nextafter(y.flat[at], away), away)  # two units in the last place
    judged = judge_captured(MODEL, TENSOR, case.x, y, threads=1)
    assert judged.wrong == 1
    assert judged.lines[-1].startswith("1 of 1,280 outputs are wrong")


@pytest.mark.parametrize(("value", "said"), [(0, "every output is 0,"), (np.nan, "every output is nan,")])
def test_outputs_that_hold_nothing_are_called_so(case: Case, value: float, said: str) -> None:
    judged = judge_captured(MODEL, TENSOR, case.x, np.full((M, N), value, np.float32), "q8_1", threads=1)
    assert (judged.exit_code, judged.wrong, judged.faults[0].id) == (1, M * N, "constant-output")
    assert judged.lines[0].startswith(said)
    assert last_line(text_of(Kind.JUDGEMENT, judged)).startswith("MISMATCH: constant-output (1,280 of 1,280 ")
    some = np.full((M, N), value, np.float32)
    some[0, 0] = 1
    assert not judge_captured(MODEL, TENSOR, case.x, some, "q8_1", threads=1).faults


def test_nothing_judged_is_no_pass(case: Case) -> None:
    none = judge_captured(MODEL, TENSOR, case.x[:0], np.zeros((0, N), np.float32), threads=1)
    assert (none.exit_code, none.outputs) == (5, 0)
    zero = judge_captured(MODEL, TENSOR, case.x * 0, np.zeros((M, N), np.float32), threads=1)
    assert (zero.exit_code, zero.outputs, zero.fitting) == (5, 0, ())
    nan = judge_captured(MODEL, TENSOR, case.x, np.full((M, N), np.nan, np.float32), threads=1)
    assert (nan.exit_code, nan.wrong) == (1, M * N)
    assert nan.first is not None
    assert nan.first.utilisation == float("inf")
    x = case.x.copy()
    x[2, 3] = np.inf
    some = judge_captured(MODEL, TENSOR, x, case.y("q8_1"), threads=1)
    assert (some.exit_code, some.outputs, some.wrong) == (5, (M - 1) * N, 0)
    assert "1 of 5 tokens" in some.left[0]
    all_of_them = judge_captured(MODEL, TENSOR, np.full_like(x, np.nan), case.y("q8_1"), threads=1)
    assert (all_of_them.exit_code, all_of_them.outputs) == (5, 0)
    wrong = case.y("q8_1")
    wrong[4, 7] += 1
    at = judge_captured(MODEL, TENSOR, x, wrong, threads=1).first
    assert at is not None
    assert (at.token, at.row) == (4, 7)  # numbers of the given arrays, though token 2 was skipped


def test_approximate_division_is_allowed_on_request(case: Case) -> None:
    """A code at a tie, set one step off."""
    x = np.zeros((1, K), np.float32)
    x[0, ::32], x[0, 1::32] = 127.0, 2.5
    semantics = SEMANTICS["q8_1"]
    off = semantics.bytes_of(x).reshape(1, -1, 36).copy()
    off[:, 0, 4 + 1] -= 1
    y = product(semantics, case.fmt, case.rows, off.reshape(1, -1)).exact.astype(np.float32)
    assert judge_captured(MODEL, TENSOR, x, y, "q8_1", threads=1).exit_code == 1
    judged = judge_captured(MODEL, TENSOR, x, y, "q8_1", threads=1, fast_math=True)
    assert judged
    assert judged.ambiguous == K // 32


def _written(folder: Path, name: str, array: Any, **more: Any) -> Path:
    np.save(folder / f"{name}.npy", array, **more)
    return folder / f"{name}.npy"


def test_the_command(case: Case, tmp_path: Path) -> None:
    x, y, out = _written(tmp_path, "x", case.x), _written(tmp_path, "y", case.y("q8_1")), tmp_path / "j.json"
    done = command_here("judge", "--tensor", TENSOR, "--x", x, "--y", y, MODEL, "-o", out, "-t", 1)
    assert done.returncode == 0, done.stderr
    assert "VERIFIED as q8_1" in done.stdout
    made = json.loads(out.read_text())
    assert (made["kind"], made["verdict"], made["exit_code"], made["fitting"]) == ("judgement", "verified", 0, ["q8_1"])
    assert made["sha256"][0] in done.stdout
    fortran = _written(tmp_path, "f", np.asfortranarray(case.x))
    big = _written(tmp_path, "b", case.y("q8_1").astype(">f4"))
    assert command_here("judge", "--tensor", TENSOR, "--x", fortran, "--y", big, MODEL, "-t", 1).returncode == 0
    wrong = _written(tmp_path, "w", case.y("q8_1")[:, ::-1])
    done = command_here("judge", "--tensor", TENSOR, "--x", x, "--y", wrong, MODEL, "-t", 1)
    assert done.returncode == 1
    assert "repeat with: gguf-verify judge " in done.stdout
    assert "--rows" not in done.stdout


def _foreign(folder: Path) -> dict[str, tuple[Path, str]]:
    """Files that are no outputs, and a part of the message for each."""
    folder.joinpath("text.npy").write_text("no array")
    folder.joinpath("empty.npy").write_bytes(b"")
    whole = _written(folder, "whole", np.zeros((M, N), np.float32)).read_bytes()
    folder.joinpath("short.npy").write_bytes(whole[:-1])
    folder.joinpath("header.npy").write_bytes(whole[:60])
    huge = whole.replace(b"(5, 256), }", b"(5, 9999999999999), }")
    folder.joinpath("huge.npy").write_bytes(huge.replace(b"\x76\x00", b"\x76\x00", 1))
    folder.joinpath("version.npy").write_bytes(whole[:6] + b"\x09\x00" + whole[8:])
    folder.joinpath("negative.npy").write_bytes(whole.replace(b"(5, 256), } ", b"(-5, 256), }"))
    folder.joinpath("endless.npy").write_bytes(whole.replace(b"}", b" ", 1))
    header = len(whole) - 4 * M * N
    folder.joinpath("fatal.npy").write_bytes(whole.replace(b"'<f4', ", b"'M8[ns/0]',").replace(b"}     ", b"} ", 1))
    folder.joinpath("nested.npy").write_bytes(whole[:10] + b"(" * (header - 11) + b"\n" + whole[header:])
    return {
        "text": (folder / "text.npy", "cannot read"), "empty": (folder / "empty.npy", "cannot read"),
        "short": (folder / "short.npy", "before the end of its data"), "header": (folder / "header.npy", "cannot read"),
        "huge": (folder / "huge.npy", "shape|cannot read"), "version": (folder / "version.npy", "cannot read"),
        "endless": (folder / "endless.npy", "cannot read"), "nested": (folder / "nested.npy", "cannot read"),
        "negative": (folder / "negative.npy", "shape"),
        "objects": (_written(folder, "o", np.array([[{}]]), allow_pickle=True), r"holds \|O, which is"),
        "doubles": (_written(folder, "d", np.zeros((M, N))), "holds float64, not float32 or float16 or bfloat16"),
        "records": (_written(folder, "r", np.zeros(3, [("a", "f4")])), "holds"),
        "flat": (_written(folder, "l", np.zeros(M * N, np.float32)), "shape"),
        "transposed": (_written(folder, "t", np.zeros((N + 1, M), np.float32)), "shape"),
        "tokens": (_written(folder, "m", np.zeros((M + 1, N), np.float32)), "x has 5 tokens, y has 6"),
        "fatal": (folder / "fatal.npy", "not a number type"),  # NumPy divides by zero where it parses it
        "folder": (folder, "is not a file"), "nothing": (folder / "none.npy", "no file"),
    }  # fmt: skip


def _bfloat16(values: np.ndarray) -> np.ndarray:
    """The bits of bfloat16 of values that it holds exactly."""
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype("<u2")


def _safetensors(path: Path, **tensors: tuple[str, np.ndarray]) -> Path:
    header, data = {}, b""
    for name, (dtype, array) in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": (len(data), len(data) + len(raw))}
        data += raw
    said = json.dumps(header).encode()
    path.write_bytes(len(said).to_bytes(8, "little") + said + data)
    return path


def _plain(path: Path, array: np.ndarray) -> Path:
    path.write_bytes(np.ascontiguousarray(array).tobytes())
    return path


def _kinds(case: Case, folder: Path) -> Iterator[tuple[str, Any, Any, dict[str, Any], tuple[str, ...]]]:
    """Name, x, y, arguments, and how they should be read, of one right product in files of each kind."""
    x, y = case.x, case.y("q8_1")
    raw_x, raw_y = _plain(folder / "x.f32", x), _plain(folder / "y.F32", y)
    numbers = ("x: plain float32 numbers", "y: plain float32 numbers")
    yield "plain", raw_x, raw_y, {}, numbers
    yield "plain of a shape", raw_x, raw_y, {"shape": (M, K)}, numbers
    unknown = _plain(folder / "x.bin", x), _plain(folder / "y", y)
    yield "without an ending", *unknown, {"shape": (M, K)}, numbers
    turned = (f"x: plain float32 numbers, transposed, from {K} x {M}", numbers[1])
    yield "plain, transposed", _plain(folder / "t.f32", x.T), raw_y, {"shape": (K, M)}, turned
    both = _safetensors(folder / "both.safetensors", x=("F32", x[None]), y=("F32", y), z=("I64", np.zeros(1, "<i8")))
    of = tuple(f"{name}: float32 tensor '{name}' of a safetensors file" for name in "xy")
    yield "safetensors", both, both, {}, of
    named = _safetensors(folder / "n.safetensors", a=("F32", x), b=("F32", y.T))
    of = of[0].replace("'x'", "'a'"), of[1].replace("'y'", "'b'") + f", transposed, from {N} x {M}"
    yield "safetensors by name", f"{named}:a", f"{named}:b", {}, of
    alone = _safetensors(folder / "alone.safetensors", anything=("F32", x))
    yield "the only tensor", alone, y, {}, ("x: float32 tensor 'anything' of a safetensors file",)
    yield "transposed", x.T, _written(folder, "yt", y.T), {}, (
        f"x: transposed, from {K} x {M}", f"y: transposed, from {N} x {M}",
    )  # fmt: skip
    yield "one token", x[0], y[:1], {}, ()
    yield "with a batch", x[None, None], y[None], {}, ()


def test_files_of_every_kind(case: Case, tmp_path: Path) -> None:
    wrong = case.y("q8_1")
    for name, x, y, more, read in _kinds(case, tmp_path):
        judged = judge_captured(MODEL, TENSOR, x, y, "q8_1", threads=1, **more)
        assert (judged.verdict, judged.read) == ("verified", read), name
        assert judged.outputs == judged.m * N
        if isinstance(x, Path) and judged.m == M:  # with the outputs of other tokens
            assert judge_captured(MODEL, TENSOR, x, wrong[::-1], "q8_1", threads=1, **more).wrong, name


@pytest.mark.parametrize(("ending", "dtype"), [("f16", "F16"), ("bf16", "BF16")])
def test_arrays_of_16_bits(case: Case, tmp_path: Path, ending: str, dtype: str) -> None:
    """Their values are the engine's; an output was rounded to its type, and a step more is wrong."""
    short = (lambda a: a.astype("<f2")) if ending == "f16" else _bfloat16
    x = (case.x.view(np.uint32) & 0xFFFF0000).view(np.float32)  # of 8 bits
    right = product(SEMANTICS["f32"], case.fmt, case.rows, SEMANTICS["f32"].bytes_of(x)).exact
    bits = short(right if ending == "f16" else BFLOAT16.rounded(right))
    files = _plain(tmp_path / f"x.{ending}", short(x)), _plain(tmp_path / f"y.{ending}", bits)
    judged = judge_captured(MODEL, TENSOR, *files, "f32", threads=1)
    assert judged.verdict == "verified"
    assert judged.output == ("float16" if ending == "f16" else "bfloat16")
    both = _safetensors(tmp_path / "both.safetensors", x=(dtype, short(x)), y=(dtype, bits))
    assert judge_captured(MODEL, TENSOR, both, both, "f32", threads=1)
    off, at = bits.view("<u2").copy(), int(np.abs(right).argmax())
    off.flat[at] += 2
    assert judge_captured(MODEL, TENSOR, files[0], _plain(tmp_path / f"w.{ending}", off), "f32", threads=1).wrong == 1
    as_float32 = right.astype(np.float32)  # an error that the rounding to 16 bits would cover
    as_float32.flat[at] *= 1 + 2.0**-13
    assert judge_captured(MODEL, TENSOR, files[0], as_float32, "f32", threads=1).wrong == 1


def test_another_order_of_values_is_wrong_and_named(tmp_path: Path, case: Case) -> None:
    """Neither a square shape nor plain numbers show their order. They are not turned, but it is said what would fit."""
    n = 8  # the first rows
    x = np.random.default_rng(4).standard_normal((K, K)).astype(np.float32)
    semantics = SEMANTICS["f32"]
    y = product(semantics, case.fmt, case.rows[:n], semantics.bytes_of(x)).exact.astype(np.float32)
    assert judge_captured(MODEL, TENSOR, x, y, "f32", (0, n), threads=1)
    plain_x, plain_y = _plain(tmp_path / "x.f32", x[:5].T), _plain(tmp_path / "y.f32", y[:5].T)
    for given, said in (
        ((np.ascontiguousarray(x.T), y), "x is transposed: it fits as [K, M], 256 x 256"),
        ((plain_x, y[:5]), "x is transposed: it fits as [K, M], 256 x 5"),
        ((x[:n], np.ascontiguousarray(y[:n].T)), "y is transposed: it fits as [N, M], 8 x 8"),
        ((x[:5], plain_y), "y is transposed: it fits as [N, M], 8 x 5"),
    ):
        judged = judge_captured(MODEL, TENSOR, given[0], given[1], "f32", (0, n), threads=1)
        assert (judged.verdict, judged.lines[0]) == ("mismatch", said)
    y[:, 3] *= 1.01
    assert "transposed" not in str(judge_captured(MODEL, TENSOR, x[:n], y[:n], "f32", (0, n), threads=1).lines)


def test_foreign_files_of_other_kinds(case: Case, tmp_path: Path) -> None:
    x = _plain(tmp_path / "x.f32", case.x)
    tensors = {"a": ("F32", case.y("f32")), "b": ("F64", np.zeros((M, N)))}
    two = _safetensors(tmp_path / "two.safetensors", **tensors)
    (tmp_path / "bad.safetensors").write_bytes(b"\x10" + bytes(30))
    (tmp_path / "folder.f32").mkdir()
    odd = _plain(tmp_path / "odd.f32", np.zeros(M * N + 1, np.float32))
    unknown = _plain(tmp_path / "y.bin", case.y("f32"))
    for path, said, more in (
        (odd, "5,124 bytes, not rows of 256 float32", ()),
        (odd, "5,124 bytes, not 5 x 256 float32", ("--shape", f"{M}x{K}")),
        (unknown, r"y: .*y\.bin is no \.npy file. Other kinds need their ending", ()),
        (tmp_path / "folder.f32", "cannot read .*folder.f32: ", ()),
        (tmp_path / "none.f32", "cannot read .*No such file", ()),
        (two, "has no tensor 'y'; it has: 'a', 'b'", ()),
        (f"{two}:b", "holds F64, not float32 or", ()),
        (tmp_path / "bad.safetensors", "not a safetensors file", ()),
        (tmp_path / "none.safetensors", "No such file", ()),
    ):
        done = command_here("judge", "--tensor", TENSOR, "--x", x, "--y", path, *more, MODEL)
        assert_one_line(done, 2, said)
    done = command_here("judge", "--tensor", TENSOR, "--x", x, "--y", two, "--shape", "5by256", MODEL)
    assert_one_line(done, 2, "--shape must be MxK")


def test_the_command_repeats_a_shape(case: Case, tmp_path: Path) -> None:
    x, y = _plain(tmp_path / "x.bin", case.x), _plain(tmp_path / "y.bin", case.y("q8_1")[::-1, :8])
    shape = "--shape", f"{M}x{K}", "--rows", "0:8", "--definition", "q8_1"
    done = command_here("judge", "--tensor", TENSOR, "--x", x, "--y", y, *shape, MODEL, "-t", 1)
    assert done.returncode == 1
    assert "read        x: plain float32 numbers\n            y: plain float32 numbers\n" in done.stdout
    assert " --shape 5x256" in next(line for line in done.stdout.splitlines() if line.startswith("repeat with: "))


def test_no_report_overwrites_an_array(case: Case, tmp_path: Path) -> None:
    x, y = _plain(tmp_path / "x.json", case.x), _plain(tmp_path / "y.bin", case.y("q8_1")[:, :8])
    options = "--shape", f"{M}x{K}", "--rows", "0:8", "--definition", "q8_1", "-t", 1, "-o", x
    done = command_here("judge", "--tensor", TENSOR, "--x", x, "--y", y, *options, MODEL)
    assert_one_line(done, 2, "would overwrite x.json, which is an input")
    assert x.read_bytes() == case.x.tobytes()


def test_foreign_arrays(case: Case, tmp_path: Path) -> None:
    x = _written(tmp_path, "x", case.x)
    for path, said in _foreign(tmp_path).values():
        assert_one_line(command_here("judge", "--tensor", TENSOR, "--x", x, "--y", path, MODEL), 2, said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--tensor", "blk.0", "--x", "x", "--y", "y"), "no tensor is called 'blk.0'; there is, for example, 'blk.0"),
        (("--x", "x"), "judge needs --tensor, --y"),
        (("--tensor", TENSOR, "--x", "x", "--y", "y", "--definition", "q9"), "Q4_0 has no definition 'q9'; it has: "),
        (("--tensor", TENSOR, "--x", "x", "--y", "y", "--rows", "3"), "--rows must be A:B"),
    ],
)  # fmt: skip
def test_invalid_arguments(arguments: tuple[str, ...], said: str) -> None:
    assert_one_line(command_here("judge", *arguments, MODEL), 2, said)


def test_files_and_tensors_that_cannot_be_judged(case: Case, tmp_path: Path) -> None:
    (tmp_path / "no.gguf").write_bytes(b"GGUF")
    with pytest.raises(MalformedFile):
        judge_captured(tmp_path / "no.gguf", TENSOR, case.x, case.y("f32"))
    with pytest.raises(NothingToVerify):
        judge_captured(MODEL, "blk.0.attn_norm.weight", case.x, case.y("f32"))


@pytest.mark.parametrize(
    "change",
    [
        lambda said: said.pop("m"), lambda said: said.update(m=-1), lambda said: said.update(n="8"),
        lambda said: said.update(type="Q9"), lambda said: said.update(k=250), lambda said: said.update(n=1 << 39),
        lambda said: said.update(definition="\x1b[31m"), lambda said: said.update(tensor=[1]),
        lambda said: said.clear(),
    ],
)  # fmt: skip
def test_foreign_cases(case: Case, tmp_path: Path, change: Any) -> None:
    said: dict[str, Any] = {"tensor": TENSOR, "type": "Q4_0", "definition": "q8_1", "m": M, "n": N, "k": K}
    _written(tmp_path, "x", case.x)
    _written(tmp_path, "y", case.y("q8_1"))
    (tmp_path / "w.bin").write_bytes(case.rows.tobytes())
    (tmp_path / "case.json").write_text(json.dumps(said))
    right: Judged = judge_case(tmp_path, threads=1)
    assert right.exit_code == 0
    change(said)
    (tmp_path / "case.json").write_text(json.dumps(said))
    with pytest.raises(UsageError) as caught:
        judge_case(tmp_path, threads=1)
    assert str(caught.value).isprintable()
