"""X-rays: which block a tensor's row or a byte of the file belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gguf_verify.audit.places import describe_byte, find_block, grid, parse_offset
from gguf_verify.audit.xray import xray
from gguf_verify.gguf.model import Model, open_model
from gguf_verify.report.terminal.xray import pair_lines
from gguf_verify.support.errors import UsageError
from tests.support import corpus
from tests.support.blocks_by_hand import HAND, Make, shown
from tests.support.tools import FIXTURES

# a user must not see NumPy's warnings either
pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture
def tiny() -> Iterator[Model]:
    with open_model(FIXTURES / "tiny-Q5_1.gguf") as model:
        yield model


def refusal(model: Model, *args: object, **kwargs: object) -> str:
    with pytest.raises(UsageError) as caught:
        find_block(model, *args, **kwargs)  # type: ignore[arg-type]
    line = str(caught.value)
    assert line.isprintable()
    assert len(line) < 500
    return line


def test_by_tensor_row_and_block(tiny: Model) -> None:
    name = "blk.0.ffn_down.weight"  # 256 rows of 24 blocks
    tensor = tiny.tensors[name]
    for args, place in (
        ((), (0, 0)), ((0, 0), (0, 0)), ((255, 23), (255, 23)), ((3,), (3, 0)), ((7, 5), (7, 5)),
        ((None, 0), (0, 0)), ((None, 23), (0, 23)), ((None, 24), (1, 0)), ((None, 6143), (255, 23)),
    ):  # fmt: skip
        assert find_block(tiny, name, *args) == (tensor, *place)
    for args, words in (
        ((256,), "no row 256 in 'blk.0.ffn_down.weight', which has rows 0 to 255"),
        ((-1, 0), "no row -1 in 'blk.0.ffn_down.weight', which has rows 0 to 255"),
        ((0, 24), "no block 24 in row 0 of 'blk.0.ffn_down.weight', which has blocks 0 to 23"),
        ((0, -1), "no block -1 in row 0 of 'blk.0.ffn_down.weight', which has blocks 0 to 23"),
        ((None, 6144), "no block 6144 in 'blk.0.ffn_down.weight', which has blocks 0 to 6143"),
        ((None, -1), "no block -1 in 'blk.0.ffn_down.weight', which has blocks 0 to 6143"),
    ):
        assert words in refusal(tiny, name, *args)
    assert "no window 8 in 'output_norm.weight', which has windows 0 to 7" in refusal(
        tiny, "output_norm.weight", None, 8
    )
    assert "row 0 only" in refusal(tiny, "output_norm.weight", 1)


def test_by_name(tiny: Model, make: Make) -> None:
    line = refusal(tiny, "blk.0.attn_p.weight")
    assert "there is no tensor 'blk.0.attn_p.weight': did you mean 'blk.0." in line
    assert "'blk.0.attn_q.weight'" in line
    assert "'blk.0.ffn_gate.weight' or 'blk.1.ffn_gate.weight' or 'blk.2" in refusal(tiny, "FFN_GATE")
    assert "did you mean 'blk.1.attn_q.weight'?" in refusal(tiny, "blk.1.attn_q")
    line = refusal(tiny, "\x1b[2J" * 50)
    assert "did you mean" not in line
    assert f"the file has {len(tiny.tensors)}" in line
    assert "which block?" in refusal(tiny)
    assert "which block?" in refusal(tiny, None, 1, 2)
    # a name as it was shown
    tensor = make(2, [32], HAND["Q4_0"][0], b"a\x1b\xff\\")
    with open_model(tensor.mapped.path) as model:
        assert find_block(model, "a\\x1b\\xff\\\\")[0].name == tensor.name
        assert "'a\\x1b\\xff\\\\'" in refusal(model, "a\\x1b\\xff\\")


def test_empty_tensors_have_no_block(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(corpus.gguf([], [corpus.info("e", [32, 0], 2, 0), corpus.info("f", [0], 0, 0)], []).data)
    with open_model(path) as model:
        for name in "ef":
            assert f"'{name}' holds no values" in refusal(model, name)
    path.write_bytes(corpus.gguf([], [], []).data)
    with open_model(path) as model:
        assert "there is no tensor 'e': the file has none" in refusal(model, "e")


def test_every_byte_has_a_block_or_a_reason(tmp_path: Path) -> None:
    """The first and the last byte of every range of many a crafted file."""
    kinds = set()
    for entry in [*corpus.GOOD, *corpus.WARNINGS, *corpus.ERRORS]:
        path = tmp_path / entry.file_name
        path.write_bytes(entry.build().data)
        with open_model(path) as model:
            (file,) = model.parts
            for owned in file.byte_map:
                kinds.add(owned.kind)
                for at in {owned.start, owned.stop - 1}:
                    if owned.kind == "data":
                        tensor, row, block = find_block(model, offset=at)
                        x = xray(tensor, row, block, None, asked=at)
                        assert x.tensor == owned.owner
                        assert x.offset <= at < x.stop
                        assert (x.previous is None) == (x.offset == owned.start)
                        assert (x.next is None) == (x.stop == owned.stop)
                    else:
                        line = refusal(model, offset=at)
                        assert line == f"byte {at} is {describe_byte(file, at)}, not a tensor's data"
                        assert f"(bytes {owned.start} to {owned.stop - 1})" in line
                        if owned.kind not in ("key", "tensor name", "gap", "trailing", "padding"):
                            assert f"the {owned.kind} " in line
            assert f"outside {path.name}, which has bytes 0 to {file.size - 1}" in refusal(model, offset=file.size)
            assert "byte -1 is outside" in refusal(model, offset=-1)
            for at in (-1, file.size):
                with pytest.raises(IndexError):
                    describe_byte(file, at)
    assert len(kinds) >= 15


def test_bytes_are_named_after_their_owner(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(corpus.gguf().data)
    with open_model(path) as model:
        at = model.parts[0].value_ranges["general.name"].start
        assert refusal(model, offset=at + 3) == (
            f"byte {at + 3} is the value of key 'general.name' (bytes {at} to {at + 14}), not a tensor's data"
        )
        assert "byte 5 is the version in the file's header (bytes 4 to 7)" in refusal(model, offset=5)
        named = model.tensors["b.weight"].described[0]
        assert f"byte {named.start} is the name of tensor 'b.weight'" in refusal(model, offset=named.start)
        start = model.tensors["a.weight"].offset
        assert "is padding after the header" in refusal(model, offset=start - 1)
        assert "is padding after the data of tensor 'b.weight'" in refusal(model, offset=model.size - 1)


def test_offset_of_every_byte_of_some_blocks(tiny: Model, make: Make) -> None:
    tensor = tiny.tensors["blk.1.attn_k.weight"]
    for flat in (0, 1, 7, 8, 1023):
        for byte in range(24):
            where = divmod(flat, 8)
            at = tensor.offset + 24 * flat + byte
            assert find_block(tiny, offset=at) == (tensor, *where)
            x = xray(tensor, *where, None, asked=at)
            assert x.flat == flat
            field = next(f for f in x.fields if f.start <= byte < f.stop)
            assert x.asked.startswith(f"byte {byte} of the block, {field.field.name}")
            assert (x.previous is None, x.next is None) == (flat == 0, flat == 1023)
    assert xray(tensor, 0, 0, None, asked=tensor.offset + 6).asked.endswith("qh byte 2: bits of x[16] to x[23]")
    assert xray(tensor, 0, 0, None, asked=tensor.offset + 23).asked.endswith("qs[15]: bits of x[15] and x[31]")
    q8 = make(8, [32], HAND["Q8_0"][0])
    assert xray(q8, 0, 0, None, asked=q8.offset + 33).asked == "byte 33 of the block, qs[31]: bits of x[31]"
    floats = make(0, [40], bytes(160))
    assert xray(floats, 0, 1, None, asked=floats.offset + 135).asked == "byte 7 of the window, x[1] byte 3"
    assert xray(tensor, 0, 0, None, asked=tensor.offset + 1).asked.endswith("of the block, d byte 1")


def test_offset_excludes_the_rest(tiny: Model) -> None:
    for rest in ({"tensor_name": "output.weight"}, {"row": 0}, {"block": 0}):
        assert "remove --tensor" in refusal(tiny, offset=500_000, **rest)


def test_split_model(tmp_path: Path) -> None:
    for name, content in corpus.SPLITS[0].files.items():
        (tmp_path / name).write_bytes(content)
    with open_model(tmp_path / corpus.SPLITS[0].opened) as model:
        at = model.tensors["blk.1.w"].offset
        assert find_block(model, offset=at)[0].name == "blk.0.w"
        tensor, row, block = find_block(model, offset=at, part=1)
        assert tensor.name == "blk.1.w"
        text = shown(xray(tensor, row, block, None))
        assert f"file     {corpus.TWO}, part 2" in text
        for part in (2, -1):
            assert f"there is no part {part + 1}: the model has 2" in refusal(model, offset=at, part=part)


@pytest.mark.parametrize(("text", "offset"), [("0", 0), ("107184", 107184), ("0x1a2b0", 107184), ("0X1A2B0", 107184)])
def test_offsets_are_decimal_or_hexadecimal(text: str, offset: int) -> None:
    assert parse_offset(text) == offset


@pytest.mark.parametrize(
    "text", ["", "x", "0x", "-1", "1.5", "1_0", " 1", "1\n", "٣", "1a2b0", "0b1", "9" * 5000, "\x1b[2J"]
)
def test_other_offsets_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--offset must be a byte offset in the file") as caught:
        parse_offset(text)
    assert str(caught.value).isprintable()


def test_wrong_arguments_raise(make: Make) -> None:
    tensor = make(2, [64, 2], HAND["Q4_0"][0] * 4)
    for row, block in ((2, 0), (-1, 0), (0, 2), (0, -1)):
        with pytest.raises(IndexError):
            xray(tensor, row, block, None)
    with pytest.raises(ValueError, match="values of shape"):
        xray(tensor, 0, 0, np.zeros(31, np.float32))
    with pytest.raises(ValueError, match="17 bytes for a block of 18"):
        xray(tensor, 0, 0, None, raw=bytes(17))
    with pytest.raises(ValueError, match="not in the block"):
        xray(tensor, 0, 1, None, asked=tensor.offset + 17)
    with pytest.raises(ValueError, match="beside"):
        pair_lines(xray(tensor, 0, 0, None), xray(make(3, [32], bytes(20)), 0, 0, None))
    assert grid(tensor) == (32, 18, 2)
