"""Copy downloaded engines into `built`, where the adapters look for them, and compile them by nvcc for this GPU.

pip download --no-deps vllm-gguf-plugin==0.0.5
git clone https://github.com/huggingface/candle && git -C candle checkout 2a13b0f3ff62f7e67013597f2996f764c5735e21
python build.py --vllm vllm_gguf_plugin-0.0.5-cp310-abi3-manylinux_2_28_x86_64.whl --candle candle
git clone https://github.com/qhy991/llama.cpp-quant-gemm
git -C llama.cpp-quant-gemm checkout b1128546a16ed4a34fcd744ae261cb3c66dc8de5
python build.py --quant-gemm llama.cpp-quant-gemm    # headers only; with --cure, repaired ones
python build.py --vllm … --candle … --no-compile     # sources only: enough for the CPU host
"""

import argparse
import shutil
import subprocess
import sysconfig
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

BUILT = Path(__file__).with_name("built")
#: nvcc's options common to both projects' builds; neither uses fast math.
FLAGS = ["-O3", "-std=c++17", "--expt-relaxed-constexpr", "-Xcompiler", "-fPIC"]
TYPES = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"]
#: Faults in llama.cpp-quant-gemm's gemm_quant_formats.cuh, and their repairs by `--cure`.
CURES = {
    "m4 * s8 / 4.0f": "m4 * s8",
    "m5 * s8 / 4.0f": "m5 * s8",
    "load_int_b4(bq8_0->qs, i)": "load_int_b2(bq8_0->qs, i)",
}


def compiled(arch, out, sources, *more, links=()):
    """Compile each source by its own nvcc, and link them into a library with `links`."""
    objects = [f"{source}.o" for source in sources]
    with ThreadPoolExecutor(8) as pool:
        pairs = zip(sources, objects, strict=True)
        commands = [["nvcc", f"-arch={arch}", *FLAGS, *more, "-c", source, "-o", made] for source, made in pairs]
        for done in pool.map(subprocess.run, commands):
            done.check_returncode()
    subprocess.run(["nvcc", f"-arch={arch}", "-shared", *objects, *links, "-o", BUILT / out], check=True)


def vllm(arch):
    import torch

    source, headers = BUILT / "vllm_gguf_plugin" / "csrc", Path(torch.__file__).with_name("include")
    includes = [f"-I{path}" for path in (headers, headers / "torch/csrc/api/include", sysconfig.get_path("include"))]
    sources = [source / "gguf/gguf_kernel.cu", source / "torch_bindings.cpp"]
    parts = ("c10", "c10_cuda", "torch_cpu", "torch_cuda", "torch")
    links = [f"-L{headers.with_name('lib')}", *(f"-l{name}" for name in parts)]
    compiled(arch, "_C_gguf.so", sources, "-DUSE_CUDA", *includes, links=links)


def candle(arch):
    source = BUILT / "candle"
    compiled(arch, "candle_mmvq.so", [source / "mmvq_gguf.cu"])
    cubin = ["nvcc", f"-arch={arch}", *FLAGS, "-cubin", source / "quantized.cu", "-o", BUILT / "candle_quantized.cubin"]
    subprocess.run(cubin, check=True)  # candle compiles it to PTX, for the driver to load
    compiled(arch, "candle_moe.so", [source / "moe/moe_gguf.cu"])
    tiles = [source / f"mmq_gguf/mmq_{name}.cu" for name in ["quantize", *(f"instance_{t}" for t in TYPES)]]
    compiled(arch, "candle_mmq.so", tiles)


def quant_gemm(checkout, built, cure):
    """Copy llama.cpp-quant-gemm, with its faults repaired if `cure` is true."""
    source = built / "quant_gemm"
    shutil.copytree(checkout, source, ignore=shutil.ignore_patterns(".git"), dirs_exist_ok=True)
    header = source / "kernels/gemm/gemm_quant_formats.cuh"
    text = (checkout / header.relative_to(source)).read_text()
    for fault, mended in CURES.items() if cure else ():
        if f" {fault};" not in text:
            raise SystemExit(f"{header}: {fault} not found; is this commit b112854?")
        text = text.replace(f" {fault};", f" {mended};")
    header.write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", type=Path, metavar="WHEEL", help="vllm-gguf-plugin's wheel, or its folder")
    parser.add_argument("--candle", type=Path, metavar="FOLDER", help="a checkout of candle, or candle-kernels/src")
    parser.add_argument("--quant-gemm", type=Path, metavar="FOLDER", help="a checkout of llama.cpp-quant-gemm")
    parser.add_argument("--cure", action="store_true", help="repair the faults found in llama.cpp-quant-gemm")
    parser.add_argument("--arch", default="native", help="of nvcc, such as sm_90 (default: this machine's)")
    parser.add_argument("--no-compile", action="store_true", help="copy the sources only")
    options = parser.parse_args()
    if options.vllm:
        if options.vllm.is_file():
            with zipfile.ZipFile(options.vllm) as wheel:
                wheel.extractall(BUILT, [name for name in wheel.namelist() if not name.endswith(".so")])
        elif options.vllm.resolve() != BUILT / "vllm_gguf_plugin":
            shutil.copytree(options.vllm, BUILT / "vllm_gguf_plugin", dirs_exist_ok=True)
        if not options.no_compile:
            vllm(options.arch)
    if options.candle:
        found = options.candle / "candle-kernels" / "src"
        source = found if found.is_dir() else options.candle
        if source.resolve() != BUILT / "candle":
            shutil.copytree(source, BUILT / "candle", dirs_exist_ok=True)
        if not options.no_compile:
            candle(options.arch)
    if options.quant_gemm:
        quant_gemm(options.quant_gemm, BUILT, options.cure)


if __name__ == "__main__":
    main()
