"""Audits of remote files: a header and a sample of blocks, from servers that are not trusted."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from yarl import URL

from gguf_verify.audit import ranges, remote
from gguf_verify.audit.audit import audit
from gguf_verify.audit.record import Audit, AuditOptions
from gguf_verify.audit.redirects import Redirects, RefusedRedirect
from gguf_verify.audit.sample import OF_TENSOR, PIECE, Drawn, draw
from gguf_verify.cli import main
from gguf_verify.gguf.model import open_model
from gguf_verify.support.address import Address
from gguf_verify.support.errors import EnvironmentFault, HarnessError, NoSuchFile, UsageError
from tests.support import corpus
from tests.support.audits import TINY, ids, rule
from tests.support.processes import children, wait_until
from tests.support.range_server import Server, served
from tests.support.shown import last_line

#: More than any audit here may fetch from a server that sends without end: buffers of sockets hold some of it.
SOME = 8 << 20


def looked_at(server: Server, path: str = "/m.gguf", **options: object) -> Audit:
    """An audit without llama.cpp and other readers, which do not affect the fetched bytes."""
    chosen = {"progress": False, "threads": 1, "llama": False, "readers": False, "time_limit": 20.0, **options}
    return audit(server.url(path), AuditOptions(**chosen))  # type: ignore[arg-type]


def drawn_of(path: Path, seed: int = 0) -> dict[str, Drawn]:
    with open_model(path) as model:
        return {d.tensor.name: d for d in draw(list(model.tensors.values()), seed)[0]}


def cli(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gguf_verify", *map(str, arguments)]
    env = {**os.environ, "NO_PROXY": "*", **environment}
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=120, check=False)


def test_the_report_states_its_sample(tmp_path: Path) -> None:
    with served({"/a/m\x1b[31m.gguf": TINY["Q4_0"]}) as server:
        url = server.url("/a/m%1b[31m.gguf?signature=SECRET").replace("//", "//user:PASSWORD@")
        done = cli("audit", url, "-o", tmp_path / "a.json", "-o", tmp_path / "a.html", "--strict")
    assert (done.returncode, done.stderr) == (5, "")
    verdict = last_line(done.stdout)
    assert re.match(r"CLEAN IN THE SAMPLE in .* of the header and of [\d,]+ of 83,712 blocks \(\d\d\.\d\d %\)", verdict)
    assert "not of the whole file" in verdict
    assert not re.search(r"CLEAN(?! IN THE SAMPLE)", done.stdout)
    assert "\x1b" not in done.stdout
    made = json.loads((tmp_path / "a.json").read_text())
    assert made["verdict"] == "clean in the sample"
    sample = made["sample"]
    assert (sample["fetched"], sample["requests"]) == (server.sent, len(server.asked))
    assert 0 < sample["fetched"] < sample["size"] == TINY["Q4_0"].stat().st_size
    assert "probability of missing a fault" in sample["untold"]
    assert made["header"]["sha256"] is None
    assert [r["verdict"] for r in made["readers"][0]] == ["accepted", "accepted"]
    for text in (done.stdout, (tmp_path / "a.json").read_text(), (tmp_path / "a.html").read_text()):
        assert "SECRET" not in text
        assert "PASSWORD" not in text
        assert "/fetched/" not in text


def partly(path: Path) -> tuple[Drawn, set[int]]:
    """A tensor of which some pieces were sampled, and their blocks."""
    drawn = next(d for d in drawn_of(path).values() if len(d.pieces) < d.of and d.tensor.type.quantized)
    blocks = drawn.tensor.nbytes // drawn.tensor.type.block_bytes
    inside = {b for p in drawn.pieces for b in range(p * drawn.blocks, min((p + 1) * drawn.blocks, blocks))}
    return drawn, inside


@pytest.mark.parametrize("which", ["first", "last"])
def test_a_finding_of_a_sample_is_one_of_the_file(which: str, tmp_path: Path) -> None:
    drawn, inside = partly(TINY["Q4_0"])
    t, ordered = drawn.tensor, sorted(inside)
    number = {"first": ordered[0], "last": ordered[-1]}[which]
    path = tmp_path / "m.gguf"
    body = bytearray(TINY["Q4_0"].read_bytes())
    at = t.offset + number * t.type.block_bytes
    body[at : at + 2] = b"\x00\x7c"  # the scale is infinite
    path.write_bytes(body)
    whole = audit(path, AuditOptions(llama=False, readers=False, progress=False))
    with served({"/m.gguf": path}) as server:
        result = looked_at(server)
    assert ids(result) == ids(whole) == [rule("scale-not-finite")]
    assert (result.exit_code, result.verdict) == (1, "wrong")
    (found,), (expected,) = result.findings, whole.findings
    assert (found.start, found.stop, found.owner) == (expected.start, expected.stop, expected.owner) == (
        at, at + t.type.block_bytes, t.name,
    )  # fmt: skip
    assert found.found == f"in the sample, {expected.found}"
    assert "not of the whole file" in result.sentence


def test_a_fault_outside_the_sample_is_not_claimed_to_be_absent(tmp_path: Path) -> None:
    drawn, inside = partly(TINY["Q4_0"])
    t = drawn.tensor
    outside = next(b for b in range(t.nbytes // t.type.block_bytes) if b not in inside)
    body = bytearray(TINY["Q4_0"].read_bytes())

    body[t.offset + outside * t.type.block_bytes : t.offset + outside * t.type.block_bytes + 2] = b"\x00\x7c"
    piece = outside // drawn.blocks
    other = next(seed for seed in range(1, 1000) if piece in draw([t], seed)[0][0].pieces)
    with served({"/m.gguf": bytes(body)}) as server:
        assert [looked_at(server, seed=seed).verdict for seed in (0, other)] == ["clean in the sample", "wrong"]


def test_the_draw() -> None:
    one, again, other = (drawn_of(TINY["Q4_0"], seed) for seed in (1, 1, 2))
    assert {n: d.pieces for n, d in one.items()} == {n: d.pieces for n, d in again.items()}
    assert {n: d.pieces for n, d in one.items()} != {n: d.pieces for n, d in other.items()}
    for d in one.values():
        assert len(set(d.pieces)) == min(d.of, OF_TENSOR)
        assert (d.nbytes == d.tensor.nbytes) == (d.of <= OF_TENSOR)
        assert all(0 < stop - start <= PIECE for start, stop in d.spans)
        assert max(stop for _, stop in d.spans) <= d.tensor.offset + d.tensor.nbytes
    (d,) = (d for d in one.values() if d.tensor.name == partly(TINY["Q4_0"])[0].tensor.name)
    seen = [p for seed in range(300) for p in draw([d.tensor], seed)[0][0].pieces]
    assert {seen.count(p) > 0 for p in range(d.of)} == {True}  # every piece may be sampled


#: Behaviour of a server → the error, a part of its line, and the time limit in seconds.
BROKEN: dict[str, tuple[type[HarnessError], str, float]] = {
    "no_ranges": (EnvironmentFault, "does not support ranges: download the file and audit it", 20),
    "no_ranges_without_end": (EnvironmentFault, "does not support ranges", 20),
    "other_range": (EnvironmentFault, "requested bytes 0 to 1048575, the server sent bytes 1-", 20),
    "longer_answer": (EnvironmentFault, "requested bytes 0 to 1048575, the server sent .* in 1,495,200 bytes", 20),
    "no_size": (EnvironmentFault, "sent an invalid 'Content-Range: ", 20),
    "huge_size": (EnvironmentFault, "4,611,686,018,427,387,904 bytes, more than any file here can have", 20),
    "another_size_later": (EnvironmentFault, "the file changed while it was fetched", 20),
    "another_version_later": (EnvironmentFault, "the file changed while it was fetched", 20),
    "cut": (EnvironmentFault, "the connection broke, 3 times", 20),
    "zipped": (EnvironmentFault, "the server sends the file encoded", 20),
    "busy": (EnvironmentFault, "the server answers 503, 3 times", 20),
    "hangs": (EnvironmentFault, r"no answer in 0.3 s|took more than 0.3 s", 0.3),
    "hangs_later": (EnvironmentFault, r"no answer in 1 s|took more than 1 s", 1),
    "drips": (EnvironmentFault, r"no answer in 0.3 s|took more than 0.3 s", 0.3),
    "forbidden": (EnvironmentFault, "denies access \\(403\\)", 20),
    "nonsense": (EnvironmentFault, "is not valid HTTP|the connection broke", 20),
}


@pytest.mark.parametrize("behaviour", BROKEN)
def test_a_broken_server_is_named_in_a_line(behaviour: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "PAUSES", (0.01, 0.01))
    error, said, seconds = BROKEN[behaviour]
    before = set(children(os.getpid()))
    with served({"/m.gguf": TINY["Q4_0"]}, behaviour) as server:
        with pytest.raises(error, match=said) as caught:
            looked_at(server, "/m.gguf?signature=SECRET", time_limit=seconds)
        assert server.sent < SOME
    line = str(caught.value)
    assert line.startswith(f"http://127.0.0.1:{server.server_address[1]}/m.gguf?…: ")
    assert line.isprintable()
    assert "SECRET" not in line
    assert wait_until(lambda: set(children(os.getpid())) <= before)  # llama.cpp's process has started by then


def test_an_answer_without_end_is_cut() -> None:
    with served({"/m.gguf": TINY["Q4_0"]}, "part_without_end") as server:
        assert looked_at(server).verdict == "clean in the sample"  # the requested bytes came first
        assert server.sent < 64 * SOME


def test_a_busy_server_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "PAUSES", (0.01, 0.01))
    with served({"/m.gguf": TINY["Q4_0"]}, "busy_once") as server:
        assert looked_at(server).verdict == "clean in the sample"


def test_a_small_file_needs_no_ranges() -> None:
    body = corpus.gguf([], [corpus.info("t", [8], corpus.T_F32, 0)], [corpus.A]).data
    with served({"/m.gguf": body}, "no_ranges") as server:
        result = looked_at(server)
    assert (result.verdict, result.exit_code, len(server.asked)) == ("clean in the sample", 5, 1)


def test_redirects() -> None:
    page = b"<!DOCTYPE html>" + bytes(2 << 20)
    with served({"/page": page, "/there": TINY["Q4_0"]}) as server:
        server.redirects["/m.gguf"] = "/there"
        assert looked_at(server).verdict == "clean in the sample"
        assert [a.path for a in server.asked[:3]] == ["/m.gguf", "/there", "/there"]  # then no more is redirected
        server.redirects["/m.gguf"] = "/page"
        refused = looked_at(server)
        assert (refused.exit_code, refused.verdict) == (4, "refused")
        assert "a web page: download the file itself" in refused.sentence
        assert refused.files[0].shown == server.url()
        for to, said in (("/m.gguf", "redirects without end"), ("file:///etc/passwd", "an invalid address")):
            server.redirects["/m.gguf"] = to
            with pytest.raises(EnvironmentFault, match=said):
                looked_at(server)


def elsewhere(server: Server, host: str = "localhost") -> str:
    """The file at the same server under another name."""
    return server.url("/there").replace("127.0.0.1", host)


def test_another_host_is_one_that_the_user_allows() -> None:
    with served({"/there": TINY["Q4_0"]}) as server:
        server.redirects["/m.gguf"] = elsewhere(server)
        with pytest.raises(EnvironmentFault) as refused:
            looked_at(server)
        assert str(refused.value) == (
            f"{server.url()}: the server redirects to 'localhost', another host; to follow it, add --allow-redirects "
            "localhost"
        )
        assert [a.path for a in server.asked] == ["/m.gguf"]
        assert looked_at(server, redirects=("LOCALHOST",)).verdict == "clean in the sample"
        done = cli("audit", server.url(), "--no-llama", "--no-readers", "--allow-redirects", "localhost")
        assert (done.returncode, done.stderr) == (5, "")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "[::ffff:127.0.0.1]", "localhost"])
def test_a_public_address_leads_to_no_internal_one(host: str) -> None:
    """Also where the user allows it. The public one is reached by a proxy, which gets no request for the other."""
    with served({"/there": TINY["Q4_0"]}) as server:
        server.redirects["/m.gguf"] = elsewhere(server, host)
        proxied = {"NO_PROXY": "localhost,127.0.0.1,127.1,::ffff:127.0.0.1", "http_proxy": server.url("")}
        options = ("--no-llama", "--no-readers", "--allow-redirects", host)
        done = cli("audit", "http://models.example/m.gguf", *options, **proxied)
        assert (done.returncode, done.stdout) == (3, "")
        assert re.search(r"redirects to '[^']+', an address of this machine or of a private network", done.stderr)
        assert len(done.stderr.splitlines()) == 1
        assert not [a for a in server.asked if a.path.endswith("/there")]


def test_which_hosts_redirects_lead_to() -> None:
    """The hub's own servers of files, and no name that only looks like one of theirs."""

    def followed(given: str, to: str, of_hub: bool = False) -> bool:
        redirects = Redirects()
        redirects.given(given, of_hub)
        try:
            redirects.check(URL(given), URL(to))
        except RefusedRedirect:
            return False
        return True

    hub, mirror = "https://huggingface.co/o/r/resolve/main/m.gguf", "https://mirror.example/m.gguf"
    assert followed(hub, "https://cas-bridge.xethub.hf.co/x")
    assert followed(hub, "https://cdn-lfs-us-1.huggingface.co/x")
    assert followed(mirror, "https://cdn-lfs.hf.co/x", of_hub=True)
    assert not followed(mirror, "https://cdn-lfs.hf.co/x")
    for host in ("hf.co.example", "evilhf.co", "huggingface.co@other.example", "10.0.0.1", "169.254.169.254", "0x7f.1"):
        assert not followed(hub, f"https://{host}/x"), host
    assert not followed(hub, "http://huggingface.co/x")
    assert followed(mirror, "https://MIRROR.example.:8443/x")
    assert followed("http://m\u00fcller.example/m", "http://xn--mller-kva.example/x")


def test_no_file_and_no_server() -> None:
    with served({}) as server:
        with pytest.raises(NoSuchFile, match="the server has no such file \\(404\\)") as missing:
            looked_at(server)
        assert missing.value.exit_code == 2
        with pytest.raises(EnvironmentFault, match="no TLS connection: "):
            audit(server.url(scheme="https"), AuditOptions(progress=False, time_limit=5))
        server.files["/m.gguf"] = b""
        assert looked_at(server).sentence.startswith("cannot be read safely: an empty file")
    with pytest.raises(EnvironmentFault, match="no connection: ") as gone:
        looked_at(server)
    assert gone.value.exit_code == 3


def test_a_header_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "FIRST", 1 << 12)
    monkeypatch.setattr(remote, "MOST_HEADER", 1 << 16)
    words = corpus.array("words", corpus.STRING, 40_000, [corpus.text("abcd") * 40_000])
    body = corpus.with_pair(words).data
    with served({"/m.gguf": body}) as server:
        with pytest.raises(EnvironmentFault, match="the header does not end within 0 MiB; no more is fetched"):
            looked_at(server)
        assert server.sent == 1 << 16
        monkeypatch.setattr(remote, "MOST_HEADER", 1 << 20)
        assert looked_at(server).refused is None
        server.files["/m.gguf"] = body[: 1 << 18]  # and one that the file ends in
        assert looked_at(server).exit_code == 4


@pytest.mark.parametrize("first", [24, 33, 100, 2000])
def test_where_the_first_bytes_end_makes_no_difference(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "FIRST", first)
    with open_model(TINY["Q4_0"]) as model, served({"/m.gguf": TINY["Q4_0"]}) as server:
        result = looked_at(server, tensor="output_norm")
        assert [*result.files[0].byte_map] == [*model.parts[0].byte_map]
        assert list(result.files[0].metadata) == list(model.metadata)


def test_every_crafted_header_is_refused_as_a_local_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "FIRST", 40)
    path = tmp_path / "m.gguf"
    differing = []
    with served({}) as server:
        for entry in corpus.BAD[::8]:
            data = entry.build().data
            path.write_bytes(data)
            server.files["/m.gguf"] = data
            local = audit(path, AuditOptions(llama=False, readers=False, progress=False, digest=False))
            there = looked_at(server)
            if (local.refused, local.exit_code or 5) != (there.refused, there.exit_code):
                differing.append(entry.name)
    assert differing == []


def test_split_models() -> None:
    entry = next(e for e in corpus.SPLITS if e.slug is None and len(e.files) > 1)
    with served({f"/a b/{name}": data for name, data in entry.files.items()}) as server:
        opened = f"/a%20b/{entry.opened}?signature=SECRET"
        result = looked_at(server, opened)
        assert (len(result.files), result.verdict) == (len(entry.files), "clean in the sample")
        assert [file.shown for file in result.files] == [server.url(f"/a%20b/{name}") + "?…" for name in entry.files]
        assert all(asked.path.endswith("?signature=SECRET") for asked in server.asked)
        last = list(entry.files)[-1]
        del server.files[f"/a b/{last}"]
        refused = looked_at(server, opened)
        assert (refused.exit_code, ids(refused)) == (4, [rule("split-part-missing")])
        assert f"no file {last} beside it" in refused.sentence


def test_the_hub(tmp_path: Path) -> None:
    with served({"/cdn/m.gguf": TINY["Q4_0"]}) as cdn, served({}) as hub:
        hub.redirects["/owner/repo/resolve/main/folder/m.gguf"] = cdn.url("/cdn/m.gguf?signature=SECRET")
        for path in ("/api/models/owner/repo", "/api/models/owner/repo/revision/main"):
            hub.answers[path] = json.dumps({"id": "owner/repo", "sha": "0" * 40, "siblings": []}).encode()
        environment = {"HF_ENDPOINT": hub.url(""), "HF_TOKEN": "hf_SECRET", "HF_HOME": str(tmp_path)}
        options = ("--no-llama", "--no-readers", "-o", tmp_path / "a.json")
        done = cli("audit", "hf://owner/repo/folder/m.gguf", *options, **environment)
        assert (done.returncode, done.stderr) == (5, "")
        assert "file        hf://owner/repo/folder/m.gguf · " in done.stdout
        assert last_line(done.stdout).startswith("CLEAN IN THE SAMPLE in ")
        assert "SECRET" not in done.stdout + (tmp_path / "a.json").read_text()
        assert {a.authorization for a in hub.asked if "resolve" in a.path} == {"Bearer hf_SECRET"}
        assert {a.authorization for a in cdn.asked} == {None}
        gone = cli("audit", "hf://owner/other/m.gguf", *options, **environment)
        assert (gone.returncode, gone.stdout) == (2, "")
        assert re.fullmatch(
            r"gguf-verify: hf://owner/other/m\.gguf: no such repository or revision on the hub.*\n", gone.stderr
        )


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "find_spec", lambda name: None if name == "aiohttp" else name)
    with pytest.raises(EnvironmentFault, match=r"aiohttp, which is not .*; run: pip install aiohttp$"):
        audit("https://localhost/m.gguf")


def test_many_files_and_what_needs_a_whole_one(capsys: pytest.CaptureFixture[str]) -> None:
    with served({"/m.gguf": TINY["Q4_0"]}) as server:
        names = [server.url(), server.url("/n.gguf"), str(TINY["Q5_1"])]
        assert main(["audit", *names, "--no-llama", "--no-readers"]) == 2
        printed = capsys.readouterr().out
        for line in ("CLEAN IN THE SAMPLE: http", r"BROKEN OFF: http.*\(404\)", "CLEAN AS FAR AS CHECKED: "):
            assert re.search(f"^{line}", printed, re.MULTILINE)
        for wrong in (["--source", str(TINY["F16"])], ["--offset", "1"]):
            assert main(["audit", server.url(), *wrong]) == 2


@pytest.mark.parametrize(
    "text", ["https://", "https:///m.gguf", "http://h/", "hf://a/b/%00", "https://h/a%2fb", "https://[/m"]
)
def test_addresses_that_name_no_file(text: str) -> None:
    with pytest.raises(UsageError, match="names no file"):
        Address.of(text)


def test_addresses() -> None:
    assert Address.of("m.gguf") is None
    assert Address.of("/a/https://b") is None
    address = Address.of("HTTPS://u:p@h:8/a%20b/m-1.gguf?t=1#x")
    assert address is not None
    assert (address.name, address.scheme, str(address)) == ("m-1.gguf", "https", "https://h:8/a%20b/m-1.gguf?…")
    assert address.beside("m 2.gguf").url == "https://u:p@h:8/a%20b/m%202.gguf?t=1#x"
    assert "p@" not in repr(address)
