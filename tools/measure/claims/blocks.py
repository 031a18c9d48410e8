"""Claims about blocks: scales, codes, sums, the order of bits, alignment."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.c_arithmetic import signed_max
from gguf_verify.formats.q8_1 import Q8_1
from gguf_verify.formats.q8_1_d4 import Q8_1_D4
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.compiler import compiler
from gguf_verify.semantics.activations import butterfly_sum
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from gguf_verify.support import scratch
from gguf_verify.support.errors import EnvironmentFault
from gguf_verify.support.paths import CHECKOUT

from ..inputs import Bytes, Floats
from ..markdown import listed, table
from .common import FIVE, Claim, Sources, gaussian, nmse, real_weights, sum_of_codes, verdict, with_sums, written_up

#: Blocks in a random sample.
BLOCKS = 1 << 15


def _equal(a: Bytes, b: Bytes, size: int) -> int:
    """Count the blocks of `size` bytes that are equal."""
    return int((a.reshape(-1, size) == b.reshape(-1, size)).all(axis=1).sum())


def _percent(part: int, of: int) -> str:
    """Format a share. Only 0 and all are printed as 0 % and 100 %."""
    if part in (0, of):
        return "100 %" if part else "0 %"
    return f"{min(max(100 * part / of, 0.1), 99.9):.1f} %"


def q4_0_scale(s: Sources) -> Claim:
    """Find the rule that gives the scale and the codes of `ggml_quantize_chunk`."""
    samples = {
        "Gaussian": gaussian(1, BLOCKS, 32),
        "`tiny-F16`": np.concatenate([w.reshape(-1, 32) for w in real_weights().values()]),
    }
    rows, holds, negative, errors = [], True, [], []
    for name, x in samples.items():
        theirs = s.llama.quantize(FORMATS["Q4_0"].type_id, x)
        claimed, signed = written_up(FORMATS["Q4_0"], x), FORMATS["Q4_0"].encode(x).reshape(theirs.shape)
        n = len(x)
        d = FORMATS["Q4_0"].scale(theirs)
        scales = [
            int((d == v.astype(np.float16)).sum())
            for v in (np.abs(x).max(axis=1) / np.float32(7), signed_max(x) / np.float32(-8))
        ]
        same = _equal(theirs, claimed, 18)
        rows += [
            (name, "max&#124;x&#124;/7, round(x/d) + 8", _percent(scales[0], n), _percent(same, n)),
            (
                name, "(signed max)/-8, (int8)(x·(1/d) + 8.5), at most 15", _percent(scales[1], n),
                _percent(_equal(theirs, signed, 18), n),
            ),
        ]  # fmt: skip
        holds &= same == n
        negative.append(f"{np.mean(d < 0):.0%}")
        errors.append([nmse(s.llama.to_float(2, w, w.size // 18 * 32).reshape(x.shape), x) for w in (claimed, theirs)])
    a, b = errors
    return Claim(
        "Q4_0's scale is max|x|/7, and its codes are round(x/d) + 8.",
        verdict({"all": holds}),
        (
            "The share of blocks from `ggml_quantize_chunk` with the same scale, or the same bytes, as each rule:",
            table(["weights", "rule", "same scale", "same bytes"], rows),
            "ggml divides the value of largest magnitude, with its sign, by -8. That value becomes code 0 exactly, "
            "code 15 represents a value one step short of the opposite one, and d is negative in "
            f"{negative[0]} of the Gaussian blocks. "
            "The rule with max/7 never uses code 0 and has a larger error: the NMSE of the decoded weights is "
            f"{a[0]:.2e} instead of {a[1]:.2e} (Gaussian), and {b[0]:.2e} instead of {b[1]:.2e} (`tiny-F16`).",
        ),
        "tests/reference/formats/test_formats.py and `gguf-verify audit` (fingerprints)",
    )


def quantizers_byte_identical(s: Sources) -> Claim:
    """Compare the write-ups' quantizers with `ggml_quantize_chunk`, block by block."""
    samples: dict[str, Floats] = {
        "Gaussian": gaussian(2, BLOCKS, 32),
        "`tiny-F16`": np.concatenate([w.reshape(-1, 32) for w in real_weights().values()]),
        "Gaussian on a grid of 1/8": (np.rint(gaussian(3, BLOCKS, 32) * 8) / 8).astype(np.float32),
    }
    rows, ours = [], 0
    differing = {f.name: 0 for f in FIVE}
    for fmt in FIVE:
        row = []
        for x in samples.values():
            theirs = s.llama.quantize(fmt.type_id, x)
            unlike = len(x) - _equal(theirs, written_up(fmt, x), fmt.block_bytes)
            ours += len(x) - _equal(theirs, fmt.encode(x), fmt.block_bytes)
            differing[fmt.name] += unlike
            row.append(f"{unlike:,}")
        rows.append([fmt.name, *row])
    never = [name for name, d in differing.items() if d == sum(len(x) for x in samples.values())]
    rarely = {name: d for name, d in differing.items() if name not in never and d}
    few = f"; all but {sum(rarely.values()):,} blocks of {listed(list(rarely))} agree" if rarely else ""
    return Claim(
        "The write-ups' quantizers (Q4_0 as above, Q5_0 with 15 and 16; Q4_1 and Q5_1 with d = (max - min)/15 or /31; "
        "Q8_0 with d = max|x|/127; codes by round(x/d)) give ggml's bytes.",
        verdict({name: d == 0 for name, d in differing.items()})
        + (f": no block of {listed(never)} agrees{few}" if never else few),
        (
            "The number of blocks that differ from those of `ggml_quantize_chunk`:",
            table(["type", *(f"{name}, {len(x):,}" for name, x in samples.items())], rows),
            "Q4_0 and Q5_0 have another scale. For the other types ggml multiplies by the rounded 1/d, whereas the "
            "write-ups divide by d. The two results differ by an ulp, which changes the code if x/d is close to half "
            "an odd integer. This is rare for Gaussian values, but not for values with few bits, such as halves. "
            f"This project's own encoders differ in {ours:,} blocks.",
        ),
        "tests/reference/formats/test_formats.py",
    )


def scales_are_fp32(s: Sources) -> Claim:
    """Inspect the bytes of scales in blocks from the CPU, and find the scales that explain outputs of CUDA."""
    size = {f.name: s.llama.versions()["types"][f.type_id]["block_bytes"] for f in (FORMATS["Q8_0"], Q8_1)}
    patterns = np.arange(1 << 16, dtype=np.uint16)
    halves = patterns.view(np.float16)
    finite = np.isfinite(halves)
    blocks = np.zeros((len(patterns), 34), np.uint8)
    blocks[:, :2] = patterns.view(np.uint8).reshape(-1, 2)
    blocks[:, 2] = 1
    decoded = s.llama.to_float(8, blocks, 32 * len(blocks)).reshape(-1, 32)[:, 0]
    as_half = int((decoded == halves.astype(np.float32))[finite].sum())
    x = gaussian(4, 64, 1024)
    d = np.abs(x).reshape(64, -1, 32).max(axis=-1) / np.float32(127)
    raw = {f.name: s.llama.from_float(f.type_id, x).reshape(64, 32, -1) for f in (FORMATS["Q8_0"], Q8_1)}
    stored, wide = (
        {name: int((b[..., :size].copy().view(kind)[..., 0] == d.astype(kind)).sum()) for name, b in raw.items()}
        for size, kind in ((2, np.float16), (4, np.float32))
    )
    w, y, a = (s.cuda[key] for key in ("Q8_0/w", "Q8_0/many", "mmq_d4"))
    rounded = Q8_1_D4.view(a.reshape(len(a), -1, 36)).copy()
    rounded["d"] = rounded["d"].astype(np.float16)
    many = [
        judge(y, product(SEMANTICS["mmq_d4"], FORMATS["Q8_0"], w, v.view(np.uint8).reshape(a.shape))).passed
        for v in (a, rounded)
    ]
    holds = {
        "blocks of Q8_0": wide["Q8_0"] == d.size,
        "blocks of Q8_1": wide["Q8_1"] == d.size,
        "activations that CUDA's MMQ quantizes in the layout D4 (for Q5_0, Q8_0 and others, more than 8 tokens)": many[
            0
        ]
        and not many[1],
    }
    return Claim(
        "The scales of Q8_0 and Q8_1 are float32.",
        verdict(holds),
        (
            f"ggml's blocks have {size['Q8_0']} bytes (2 + 32) and {size['Q8_1']} (2 + 2 + 32), which leaves no room "
            "for a float32. "
            f"`to_float` was given Q8_0 blocks with all finite halves as d: it reads d as a half in {as_half:,} of "
            f"{finite.sum():,}. `from_float` stores half(max|x|/127) in the first two bytes of "
            f"{stored['Q8_0']:,} of {d.size:,} blocks of Q8_0 and of {stored['Q8_1']:,} of Q8_1; the first four bytes "
            f"are max|x|/127 as a float32 in {wide['Q8_0']:,} and {wide['Q8_1']:,}.",
            "MMQ's activations in the layout D4 are not `block_q8_1` and do have a float32 scale. The outputs "
            f"measured on an H200 (Q8_0, 64 tokens) are {'within' if many[0] else 'outside'} the bound with that "
            f"scale, and {'within' if many[1] else 'outside'} it with the same scale rounded to half.",
        ),
        "tests/reference/llama/test_cuda_reference.py",
    )


def s_is_the_raw_sum(s: Sources) -> Claim:
    """Find the sum in the bytes of `from_float`, and the sum that explains outputs of CUDA."""
    x = gaussian(5, 64, 4096)
    blocks = Q8_1.view(s.llama.from_float(Q8_1.type_id, x).reshape(64, 128, 36))
    wide = x.reshape(64, 128, 32)
    d = np.abs(wide).max(axis=-1) / np.float32(127)
    of_codes = (d * blocks["qs"].sum(axis=-1, dtype=np.int32).astype(np.float32)).astype(np.float16)
    n = d.size
    cpu = [int((blocks["s"] == v).sum()) for v in (butterfly_sum(wide).astype(np.float16), of_codes)]
    rows = [["CPU, bytes of `from_float`", "", _percent(cpu[0], n), _percent(cpu[1], n)]]
    passed = []
    for path, activations, semantics in (("8 tokens (MMVQ)", "q8_1", "q8_1_half"), ("64 tokens (MMQ)", "mmq", "mmq")):
        tokens = "few" if semantics == "q8_1_half" else "many"
        a, values = s.cuda[activations], s.cuda[f"x_{tokens}"]
        sums = butterfly_sum(values.reshape(len(a), -1, 32)).astype(np.float16), sum_of_codes(a)
        for fmt in (FORMATS["Q4_1"], FORMATS["Q5_1"]):
            w, y = s.cuda[f"{fmt.name}/w"], s.cuda[f"{fmt.name}/{tokens}"]
            of = [judge(y, product(SEMANTICS[semantics], fmt, w, with_sums(a, v))).passed for v in sums]
            rows.append([f"CUDA, {path}", fmt.name, *("explained" if p else "not explained" for p in of)])
            passed.append(of[0] and not of[1])
    return Claim(
        "The s of a Q8_1 block is the sum of the raw float values.",
        verdict({"CUDA": all(passed), "the CPU": cpu[0] == n}),
        (
            table(["path", "weights", "s = half(Σx)", "s = half(d·Σq)"], rows),
            "CPU: the share of blocks in a Gaussian sample that contain this sum, with d before its rounding (if both "
            "sums round to the same half, a block counts for both). CUDA: *explained* means that outputs from an H200 "
            "are within the bound of the exact product with this sum in the activations.",
        ),
        "tests/reference/llama/test_cuda_reference.py and tests/unit/semantics/test_semantics.py",
    )


def bit_order(s: Sources) -> Claim:
    """Pass one bit at a time through `to_float` and `from_float`."""
    one = np.float16(1).view(np.uint16)
    moves: dict[str, bool] = {}
    for fmt in (FORMATS["Q5_0"], FORMATS["Q5_1"]):
        blocks = np.zeros((64, fmt.block_bytes), np.uint8)
        blocks[:, :2] = np.array([one]).view(np.uint8)
        at, nibbles = fmt.field_offset("qh"), fmt.field_offset("qs")
        for j in range(32):
            blocks[j, at + j // 8] = 1 << j % 8
            blocks[32 + j, nibbles + j % 16] = 1 << 4 * (j // 16)
        values = s.llama.to_float(fmt.type_id, blocks, 32 * 64).reshape(64, 32) + np.float32(fmt.offset)
        expected = np.concatenate([16 * np.eye(32), np.eye(32)])
        moves[fmt.name] = bool((values == expected).all())
    x = np.eye(32, dtype=np.float32)
    codes = s.llama.from_float(Q8_1.type_id, x)[:, 4:].view(np.int8)
    moves["Q8_1 of the CPU"] = bool((codes == 127 * np.eye(32, dtype=np.int8)).all())
    q5 = moves["Q5_0"] and moves["Q5_1"]
    return Claim(
        "A Q8_1 block holds its 32 codes in order; the fifth bits of Q5 are segmented: bits 0..15 belong to the low "
        "nibbles (values 0..15) and bits 16..31 to the high ones (values 16..31), not to neighbours in turn.",
        verdict(moves),
        (
            "`to_float` was given Q5_0 and Q5_1 blocks with one bit set. Bit j of qh changes "
            f"{'value j only' if q5 else 'other values'}, by 16; the low nibble of qs[j] changes "
            f"{'value j, and the high nibble value j + 16' if q5 else 'other values, and so does the high nibble'}.",
            f"`from_float` was given 32 blocks with a single 1. The Q8_1 code of value j "
            f"{'is' if moves['Q8_1 of the CPU'] else 'is not'} byte 4 + j. "
            "MMQ's blocks of four times 32 activations (layouts DS4 and D4) cannot be read from outside, so their "
            "order is not checked.",
        ),
        "[formats](formats.md) and tests/reference/formats/test_formats.py",
    )


# ---- alignment -------------------------------------------------------------------------------------------------------

SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O0", "-g1"]
#: Types and their headers, in which 2-byte loads of qs are replaced by 4-byte loads.
_ALTERED = {"Q8_0": "q8_0.cuh", "Q4_0": "q4_0.cuh", "Q5_0": "q5_0.cuh"}

#: A 4-byte load, and a fix that loads the same bytes from any address.
_CAST = "return ((const uint32_t*)bytes)[j];"
_MEMCPY = "uint32_t w; __builtin_memcpy(&w, (const uint8_t*)bytes + 4 * j, 4); return w;"


def _sanitized(kernels: Path, cases: Sequence[str], alter: str = "", cured: bool = False) -> str:
    """Return the sanitizers' report for `q8_1_dp4a` on the CPU host, or "clean". Raises EnvironmentFault without
    libasan."""
    found = subprocess.run([compiler(), "-print-file-name=libasan.so"], capture_output=True, text=True, check=False)
    library = Path(found.stdout.strip())
    if not (library.is_absolute() and library.exists()):
        raise EnvironmentFault("the compiler has no address sanitizer as a library (libasan)")
    with scratch.temporary("measure") as folder:
        root = folder / "kernels"
        shutil.copytree(kernels, root)
        changes = [(alter, "load_word_2(qs, j", "load_word_4(qs, j")] if alter else []
        for file, old, new in [*changes, *([("words.cuh", _CAST, _MEMCPY)] if cured else [])]:
            header = root / "formats" / file
            text = header.read_text()
            if old not in text:
                raise ValueError(f"{file} no longer contains the text that this check replaces")
            header.write_text(text.replace(old, new))
        options = {"root": str(root), "cases": [["q8_1_dp4a", name] for name in cases], "flags": SANITIZERS}
        # Python itself leaks memory. The library must be loaded before anything allocates.
        environment = os.environ | {"LD_PRELOAD": str(library), "ASAN_OPTIONS": "detect_leaks=0"}
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.sanitized", json.dumps(options)],
            cwd=CHECKOUT, env=environment, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
    if done.returncode == 0:
        return "clean"
    said = re.search(r"runtime error: (load of misaligned address)|AddressSanitizer: (\S+)", done.stderr)
    return next(filter(None, said.groups())) if said else f"failed: {done.stderr[-200:]}"


def _words(fmt: BlockFormat) -> str:
    """The address of qs modulo 4 in consecutive blocks if the first begins at an aligned address."""
    at = fmt.field_offset("qs")
    return ", ".join(str((b * fmt.block_bytes + at) % 4) for b in range(4)) + ", …"


def q8_0_misaligned(s: Sources) -> Claim:
    """Run the shipped dp4a kernel with loads of 2 and of 4 bytes, under sanitizers on the CPU host."""
    names = [f.name for f in FIVE]
    with ThreadPoolExecutor(2) as pool:
        clean = pool.submit(_sanitized, s.kernels, names)
        results = {n: pool.submit(_sanitized, s.kernels, [n], header) for n, header in _ALTERED.items()}
        by_memcpy = pool.submit(_sanitized, s.kernels, ["Q8_0"], _ALTERED["Q8_0"], True).result()
        as_shipped = clean.result()
        words = {name: result.result() for name, result in results.items()}
    rows = [
        [f.name, f.block_bytes, f.field_offset("qs"), _words(f), words.get(f.name, as_shipped), as_shipped]
        for f in FIVE
    ]
    fails = {name: "misaligned" in text for name, text in words.items()}
    others = [name for name, failed in fails.items() if failed and name != "Q8_0"]
    said = verdict({"loads of 4 bytes from the file's blocks": fails["Q8_0"], "2 bytes": "misaligned" in as_shipped})
    return Claim(
        "Q8_0 fails with a misaligned address.",
        f"{said}; {listed(others)} fail likewise" if others and fails["Q8_0"] else said,
        (
            "The report of `-fsanitize=address,undefined` for `q8_1_dp4a` on the CPU host, with qs read as words of 4 "
            "bytes, and as shipped:",
            table(["type", "block", "qs at", "address of qs modulo 4", "4-byte words", "as shipped"], rows),
            "A block of 34 bytes (or 18, or 22) is aligned to 2 bytes only. In an aligned row the codes of every other "
            "block, starting with the first, begin at an odd multiple of 2. There a GPU rejects a 4-byte load as a "
            "misaligned address. An x86 CPU accepts it, so only a sanitizer reports it. There are three fixes: two "
            "loads of 2 bytes (`load_word_2`, as shipped; Q4_1 and Q5_1 may load 4), `memcpy` (the sanitizers' report "
            f"for the 4-byte words of Q8_0 is then: {by_memcpy}), or weights packed in another order "
            "(`kernels/pack/weights.cu`). This was not run on a GPU for this page.",
        ),
        "tests/rungs/kernels/test_kernels.py -k sanitizers",
    )
