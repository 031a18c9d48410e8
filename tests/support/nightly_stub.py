"""Stands in for a run of the harness in tests of the nightly: what it does is its prompt's first word.

python -I -S nightly_stub.py MODEL --prompt=WORD … --json FILE

With --device it stands in for `gguf-verify backend`.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time

model = sys.argv[1]
word, *rest = next(a for a in sys.argv if a.startswith("--prompt=")).removeprefix("--prompt=").split()
target = sys.argv[sys.argv.index("-o") + 1]
device = next((a.removeprefix("--device=") for a in sys.argv if a.startswith("--device=")), "")
kernel = "backend" if device else sys.argv[sys.argv.index("--kernel") + 1]


def rung(name, substance):
    own = {
        "name": name, "verdict": "passed", "question": "?", "substance": [substance], "seconds": 0.25, "fault": None,
        "checked": {substance: 1}, "not_checked": {}, "unverified": [], "failures": [], "n_failures": 0, "worst": {},
        "blamed": {}, "failing": {}, "causes": {}, "waived": {}, "envelopes": [], "stages": {}, "done": {},
        "diagnosis": None, "same": {}, "headroom": None, "heat_map": None, "figures": {}, "notes": [], "details": [],
        "fault_culprit": "environment", "sampled": None, "closer": None, "skipped": [], "other_diagnoses": [],
    }  # fmt: skip
    if name == "layers":
        own["worst"] = {"kernel": {"utilisation": 0.03125, "where": "blk.0 row 1", "score": 1.5, "of_kernel": True}}
        own["figures"] = {"gap to llama.cpp, worst NMSE": 0.0003}
        own["details"] = [gemm(0.03125), gemm(0.0625)]
    return own


def gemm(utilisation):
    return {
        "record": "gemm", "tensor": "blk.0", "matrix": None, "node": "n", "type": "Q4_0", "m": 1, "n": 1, "k": 32,
        "kernel": kernel, "llama_definition": "q8_0_cpu", "own": utilisation, "shared": 0.0, "other_m": 0.0,
        "other_shapes": None, "llama": 0.0, "gap_nmse": 0.0003, "failures": 0,
    }  # fmt: skip


def report():
    names = ("gguf_verify", "llama_cpp_python", "llama_cpp", "ggml", "llama_build", "python", "numpy", "gguf",
             "platform", "byte_order")  # fmt: skip
    nvrtc = "13.2" if os.environ.get("NVRTC_LIBRARY") else ""
    host = {"name": "cpu", "device": "stub (x86_64)", "sm": None, "threads": 1, "compiler": "c++ 1", "driver": "",
            "nvrtc": nvrtc, "cupy": "", "own_process": False, "chosen": ""}  # fmt: skip
    environment = {
        "versions": dict.fromkeys(names, "1"), "host": host,
        "kernel": {"name": kernel, "definition": "q8_1", "judged_by": None, "verified_means": None, "order": "",
                   "covers": [], "element_kernels": {}, "element_host": host},
        "file": {"path": model, "size": 1, "sha256": [], "architecture": "llama", "tensor_types": {}},
        "reference": {"where": "CPU", "definitions": {}}, "options": {},
        "sandbox": {"kind": "none", "by": "none"},
    }  # fmt: skip
    substance = {"bytes": "blocks", "blocks": "blocks", "layers": "outputs", "tokens": "tokens"}
    return {"schema": 4, "verdict": "verified", "exit_code": 0, "environment": environment, "seconds": 1.0,
            "changed": None, "drawn": None, "ended_by": "", "not_climbed": [], "command": kernel, "costs": None,
            "waivers": [],
            "rungs": [rung(*of) for of in substance.items()]}  # fmt: skip


def graph():
    folder = os.path.realpath(sys.argv[sys.argv.index("--llama") + 1]) if "--llama" in sys.argv else "/lib"
    operation = {"operation": "MUL_MAT Q4_0", "device": device, "fell_back": False, "nodes": 3, "elements": 96,
                 "definitions": ["q8_0_cpu"], "utilisation": 0.5, "exact": False, "ambiguous": 0, "wrong": 0,
                 "first": None}  # fmt: skip
    return {
        "schema": 1, "kind": "graph", "verdict": "verified", "exit_code": 0, "judged": 3, "gguf_verify": "1",
        "path": model, "sha256": [], "architecture": "llama", "evaluations": ["the prompt of 1 tokens"], "graph": [],
        "build": {"llama_cpp": "1", "ggml": "1", "llama_cpp_python": "none", "folder": folder, "features": ""},
        "device": {"name": device, "backend": "stub", "description": "stub", "kind": "GPU", "memory": 0},
        "options": {"device": device}, "operations": [operation], "wrong": [], "wrong_nodes": 0, "not_judged": [],
        "varying": [], "fault": "", "ended_by": "", "seconds": 0.25, "command": "",
    }  # fmt: skip


def write(made):
    with open(target, "w") as file:
        json.dump(made, file)


def failed(made, said, code, **changes):
    made["verdict"], made["exit_code"] = said, code
    made["rungs"][2] |= changes
    write(made)
    sys.exit(code)


if log := os.environ.get("STUB_LOG"):
    with open(log, "a") as file:
        file.write(f"{os.path.basename(model)} {kernel} {word} {' '.join(rest)}\n")
made = graph() if device else report()
if word == "pass":
    time.sleep(float(rest[0]) if rest else 0)
    write(made)
elif word == "opens":
    with open(rest[0], "rb") as library:
        made["environment"]["kernel"]["opened"] = {
            "files": {rest[0]: hashlib.sha256(library.read()).hexdigest(), "/no/such.so": None}, "packages": {}
        }  # fmt: skip
    write(made)
elif word == "killed":
    os.kill(os.getpid(), getattr(signal, rest[0]))
    signal.pause()
elif word == "killed-once":
    if os.path.exists(rest[0]):
        write(made)
    else:
        open(rest[0], "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
elif word in ("killed-with-its-worker", "kills-its-worker"):
    if not rest or not os.path.exists(rest[0]):
        for marker in rest:
            open(marker, "w").close()
        # the process that keeps this one was started by the one that runs the cell
        with open(f"/proc/{os.getppid()}/stat") as file:
            os.kill(int(file.read().rpartition(")")[2].split()[1]), signal.SIGKILL)
        signal.pause()
    write(made)
elif word == "lies":  # a pass without a report
    pass
elif word == "garbage":
    with open(target, "w") as file:
        file.write("{")
elif word == "list":
    write([made])
elif word == "schema":
    write(made | {"schema": 1})
elif word == "lacks":
    del made["rungs"][1]["worst"]
    write(made)
elif word == "lacks-environment":
    del made["environment"]
    write(made)
elif word == "lacks-claim":
    del made["rungs"][1]["verdict"]
    write(made)
elif word == "wrong-type":
    made["rungs"][2]["n_failures"] = "no"
    write(made)
elif word == "another-rung":
    made["rungs"][2]["name"] = "nonsense"
    write(made)
elif word == "nested":
    with open(target, "w") as file:
        file.write("[" * 1_000_000)
elif word == "undecodable":
    with open(target, "wb") as binary:
        binary.write(json.dumps(made).encode().replace(b"stub", b"\xff\xfe"))
elif word == "not-a-number":  # is read as a number
    made["rungs"][2]["details"][1]["other_m"] = "NaN"
    made["rungs"][2]["worst"]["kernel"]["utilisation"] = "Infinity"
    write(made)
elif word in ("waived", "waived-lies", "waived-unused", "waived-says"):
    failing = {"blk.0": 4}
    made["rungs"][2] |= {"verdict": "waived", "failures": [{"what": "blk.0 row 3", "tensor": "blk.0"}], "n_failures": 4}
    made["rungs"][2] |= {"blamed": {"kernel": 4}, "failing": failing, "waived": failing}
    made |= {"verdict": "waived"}
    use = {"what": "tensor blk.0", "reason": "issue 42", "until": "2999-01-31", "state": "applied", "failures": 4}
    if word == "waived-lies":
        made["rungs"][2]["waived"] = {"blk.0": 3}
    if word == "waived-says":
        made["rungs"][3]["verdict"] = "waived"
    if word == "waived-unused":
        use["state"] = "unused"
    write(made | {"waivers": [use]})
elif word == "nothing-checked":
    made["rungs"][2]["checked"] = {}
    write(made)
elif word == "says-mismatch":
    write(made | {"verdict": "mismatch"})
elif word == "three-rungs":
    del made["rungs"][3]
    write(made)
elif word == "one-failed":
    made["rungs"][3]["verdict"] = "unverified"
    write(made)
elif word == "holds-failures":
    made["rungs"][2]["failures"] = [{"what": "wrong"}]
    write(made)
elif word == "never-ran":
    place = {"file": "k.cu", "line": 45, "last": 45, "source": "if (M == 1500)", "branch": True}
    made["environment"]["kernel"]["coverage"] = {"lines": 9, "lines_run": 9, "n_never": 3, "never": [place]}
    write(made)
elif word == "report-exit":
    write(made | {"exit_code": 5})
elif word in ("budget", "hides-a-budget"):
    made |= {"ended_by": "budget", "not_climbed": ["tokens"], "rungs": made["rungs"][:3]}
    made["environment"]["options"] = {"budget": 120.0}
    if word == "hides-a-budget":
        made["rungs"] = report()["rungs"]
        write(made)
    else:
        failed(made, "not everything verified", 5, verdict="unverified",
               unverified=[{"name": "blk.0", "why": "the budget of 2m was spent"}])  # fmt: skip
elif word == "contradicts":
    write(made)
    sys.exit(1)
elif word == "changed":
    made["changed"] = "m.gguf was written to, cut or replaced"
    failed(made, "broken off", 3, verdict="failed", failures=[{"what": "blk.0 row 3 is wrong"}], n_failures=4)
elif word == "hides-a-change":
    write(made | {"changed": "m.gguf was written to, cut or replaced"})
elif word == "mismatch":
    wrong = {"failures": [{"what": "blk.0 row 3 is wrong"}], "n_failures": 4, "blamed": {"kernel": 4}}
    failed(made, "mismatch", 1, verdict="failed", **wrong)
elif word in ("knows", "does-not-know"):  # what it found, once it is asked to end; the file says that it can be asked
    made["ended_by"], made["rungs"][3]["fault"] = "SIGTERM", "interrupted by SIGTERM before its end"
    made["rungs"][3] |= {"verdict": "unverified", "fault_culprit": "coverage"}
    wrong = {"verdict": "failed", "failures": [{"what": "blk.0 row 3 is wrong"}], "n_failures": 4,
             "blamed": {"kernel": 4}}  # fmt: skip

    def end(*_):
        failed(made, *(("mismatch", 1) if word == "knows" else ("interrupted", 3)), **wrong if word == "knows" else {})

    signal.signal(signal.SIGTERM, end)
    with open(rest[0], "w"):
        pass
    while True:
        time.sleep(1)
elif word == "unverified":
    left = {"name": "x", "why": "no kernel", "tensor": "x"}
    failed(made, "not everything verified", 5, verdict="unverified", unverified=[left])
elif word == "fault":
    failed(made, "broken off", 3, verdict="unverified", fault="llama.cpp died in evaluate (SIGSEGV)")
elif word == "says-wrong":
    print("gguf-verify: the kernel wrote outside its output", file=sys.stderr)
    sys.exit(1)
elif word == "raises":
    raise ValueError("no")
elif word == "malformed":
    print("gguf-verify: \x1b[31mno GGUF", file=sys.stderr)
    sys.exit(4)
elif word == "usage":
    print("one\ngguf-verify: no such kernel\n", file=sys.stderr)
    sys.exit(2)
elif word == "segv":
    write(made)
    print("last words", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)
elif word == "hangs":  # with a pass in its report, and a grandchild in a session of its own
    write(made)
    print("still going", file=sys.stderr, flush=True)
    code = "import time; time.sleep(600)"
    for session in (True, False):
        child = subprocess.Popen([sys.executable, "-I", "-S", "-c", code, "STUB"], start_new_session=session)
        with open(rest[0], "a") as file:
            file.write(f"{child.pid}\n")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
elif word == "leaves":  # a pass that leaves a process behind
    write(made)
    code = "import os, time; os.setsid(); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", code])
    with open(rest[0], "a") as file:
        file.write(f"{child.pid}\n")
elif word == "floods":
    for _ in range(20_000):
        print("x" * 100, file=sys.stderr)
    write(made)
else:
    sys.exit(99)
