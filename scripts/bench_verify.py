"""What a verification costs: a llama of TinyLlama-1.1B's shape with random weights, through all rungs.

    python scripts/bench_verify.py [--type Q4_0] [--layers 22] [--keep FILE] [-n 16] [--host cpu] [--kernel NAME]

It makes the model (llama.cpp quantizes it), verifies it in a process of its own, and prints the time of each rung and
the peak memory: the sum over all processes of the proportional set size, which counts a shared page once. The mapped
file is part of it, so the figure to look at is what lies above the file's size.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import gguf
import numpy as np
from tqdm import tqdm

from harness.formats import FORMATS, BlockFormat
from harness.reference import Llama

N_EMBD, N_FF, N_HEAD, N_HEAD_KV, N_VOCAB = 2048, 5632, 32, 4, 32000
FTYPES = {"Q4_0": 2, "Q4_1": 3, "Q5_0": 8, "Q5_1": 9, "Q8_0": 7}


def shapes(n_layer: int) -> list[tuple[str, int, int]]:
    """Name, rows and columns of each matrix."""
    n_kv = N_EMBD // N_HEAD * N_HEAD_KV
    out = [("token_embd.weight", N_VOCAB, N_EMBD), ("output.weight", N_VOCAB, N_EMBD)]
    for i in range(n_layer):
        out += [
            (f"blk.{i}.attn_q.weight", N_EMBD, N_EMBD),
            (f"blk.{i}.attn_k.weight", n_kv, N_EMBD),
            (f"blk.{i}.attn_v.weight", n_kv, N_EMBD),
            (f"blk.{i}.attn_output.weight", N_EMBD, N_EMBD),
            (f"blk.{i}.ffn_gate.weight", N_FF, N_EMBD),
            (f"blk.{i}.ffn_up.weight", N_FF, N_EMBD),
            (f"blk.{i}.ffn_down.weight", N_EMBD, N_FF),
        ]
    return out


def make_model(path: Path, fmt: BlockFormat, n_layer: int, seed: int = 0) -> None:
    """Gaussian weights of variance 1/K, so that activations keep their size through the layers."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("random TinyLlama-1.1B")
    writer.add_context_length(2048)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(n_layer)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(N_HEAD_KV)
    writer.add_rope_dimension_count(N_EMBD // N_HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(N_VOCAB)
    writer.add_file_type(FTYPES[fmt.name])
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *bytes_, *(f"word{i}" for i in range(N_VOCAB - 259))]
    kinds = [gguf.TokenType.UNKNOWN, *[gguf.TokenType.CONTROL] * 2, *[gguf.TokenType.BYTE] * 256]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * N_VOCAB)
    writer.add_token_types([*kinds, *[gguf.TokenType.NORMAL] * (N_VOCAB - len(kinds))])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    rng = np.random.default_rng(seed)
    matrices = shapes(n_layer)
    norms = ["output_norm.weight"]
    norms += [f"blk.{i}.{part}_norm.weight" for i in range(n_layer) for part in ("attn", "ffn")]
    kind = gguf.GGMLQuantizationType(fmt.type_id)
    for name, n, k in matrices:
        writer.add_tensor_info(name, (n, fmt.row_bytes(k)), np.dtype(np.uint8), n * fmt.row_bytes(k), raw_dtype=kind)
    for name in norms:
        writer.add_tensor_info(name, (N_EMBD,), np.dtype(np.float32), 4 * N_EMBD)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    with Llama() as llama:
        for _, n, k in tqdm(matrices, desc="making the model", unit="tensor", disable=None):
            rows = [
                llama.quantize(fmt.type_id, rng.standard_normal((min(4096, n - i), k), np.float32) / np.float32(k**0.5))
                for i in range(0, n, 4096)
            ]
            writer.write_tensor_data(np.concatenate(rows))
    for _ in norms:
        writer.write_tensor_data(np.ones(N_EMBD, np.float32))
    writer.close()


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    out = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*"):
        for child in (task / "children").read_text().split():
            out += tree(int(child))
    return out


def proportional_set(pid: int) -> int:
    """Bytes."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def verify(model: Path, arguments: list[str]) -> tuple[dict, float, int]:
    """The JSON report of a run, its wall time in seconds, its peak memory in bytes."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "report.json"
        script = Path(__file__).with_name("verify_model.py")
        start = time.perf_counter()
        process = subprocess.Popen([sys.executable, str(script), str(model), "--json", str(out), *arguments])
        peak = 0

        def watch() -> None:
            nonlocal peak
            while process.poll() is None:
                with contextlib.suppress(OSError):  # a process ended while it was looked at
                    peak = max(peak, sum(proportional_set(p) for p in tree(process.pid)))
                time.sleep(0.1)

        watcher = threading.Thread(target=watch)
        watcher.start()
        code = process.wait()
        watcher.join()
        seconds = time.perf_counter() - start
        if not out.exists():
            raise SystemExit(f"the verification ended with exit code {code} and no report")
        return json.loads(out.read_text()), seconds, peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--type", choices=FTYPES, default="Q4_0")
    parser.add_argument("--layers", type=int, nargs="+", default=[22], help="one model for each number of layers")
    parser.add_argument("--keep", type=Path, help="keep (or use) the model file; with several sizes, a folder")
    parser.add_argument("-n", type=int, default=16, help="tokens to predict")
    parser.add_argument("-p", default="Once", help="prompt; every character is a token, a space three")
    parser.add_argument("--host", default="auto")
    parser.add_argument("--kernel", default="q8_1_dp4a")
    args = parser.parse_args()
    rows = []
    for n_layer in args.layers:
        with tempfile.TemporaryDirectory() as folder:
            path = args.keep or Path(folder)
            if path.is_dir():
                path = path / f"random-1.1B-{n_layer}-{args.type}.gguf"
            if not path.exists():
                make_model(path, FORMATS[args.type], n_layer)
            options = ["-n", str(args.n), "-p", args.p, "--host", args.host, "--kernel", args.kernel]
            report, seconds, peak = verify(path, options)
            rungs = " · ".join(f"{r['name']} {r['seconds']:.1f} s" for r in report["rungs"])
            above = (peak - path.stat().st_size) / 2**30
            rows.append(
                f"{n_layer} layers, {path.stat().st_size / 2**30:.2f} GiB: {report['verdict']} in {seconds:.1f} s "
                f"({rungs}); peak memory {peak / 2**30:.2f} GiB, {above:+.2f} GiB above the file"
            )
    print("\n".join(rows))


if __name__ == "__main__":
    main()
