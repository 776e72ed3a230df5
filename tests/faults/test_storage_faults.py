"""Storage that fails: full, read-only, half-written, damaged, moved, shared by two, out of time."""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from fault_injection import PATIENCE_SECONDS, Fresh, Scenario, Server, differing, left_overs
from fault_scenarios import EVALUATE, RUN, TRAIN, results, whole

from bilateral import storage
from bilateral.cli import main
from bilateral.errors import UserError
from bilateral.models import build_model
from bilateral.training.checkpoint import read_checkpoint
from bilateral.weights import read_about, read_weights, write_weights

WORDS = [*TRAIN, "--quiet"]
LONG = [*WORDS, "--epochs", "400", "--check-epochs", "0"]


@pytest.fixture
def ended(record_property):
    """Tell the summary of a fault and of the run that ended right after it."""

    def tell(scenario: str, kinds: dict[str, int], runs: int = 1) -> None:
        value = {"scenario": scenario, "kinds": kinds, "runs": runs, "right": runs}
        record_property("faults", value)

    return tell


def command(server: Server, words, folder: Path, **more) -> tuple[int, str]:
    """A command's exit code and what it said."""
    said = folder.parent / f"said by {folder.name}.txt"
    code = server.start(words, folder, said, **more).wait(PATIENCE_SECONDS)
    assert code is not None
    return code, said.read_text()


def stopped_half_way(server: Server, folder: Path) -> None:
    """A run with a checkpoint, not at its end."""
    process = server.start(WORDS, folder, folder.parent / "said.txt")
    checkpoint = folder / RUN / "checkpoint.pt"
    while not checkpoint.exists():
        assert process.wait(0.005) is None
    process.signal(signal.SIGTERM)
    assert process.wait(PATIENCE_SECONDS) == 143


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


class FailingDisk:
    """The n-th flush fails, a few bytes short of the whole."""

    def __init__(self, at: int | None = None) -> None:
        self.at, self.calls, self.fsync = at, 0, os.fsync

    def __call__(self, handle: int) -> None:
        self.calls += 1
        if self.calls == self.at:
            os.ftruncate(handle, max(0, os.fstat(handle).st_size - 5))
            raise OSError(errno.ENOSPC, "No space left on device")
        self.fsync(handle)


@pytest.mark.parametrize(("name", "every"), [("train", 2), ("evaluate", 5)])
def test_any_write_that_fails_half_way(
    name, every, known: dict[str, Scenario], tmp_path, monkeypatch, capsys, ended
):
    """One line and exit code 2; then the same command goes on to the same results."""
    scenario = known[name]

    def attempt(folder: Path, at: int | None) -> tuple[int, FailingDisk]:
        disk = FailingDisk(at)
        monkeypatch.setattr(storage.os, "fsync", disk)
        monkeypatch.chdir(folder)
        return main(list(scenario.words)), disk

    def begun(place: str) -> Path:
        if scenario.base is not None:
            return Path(shutil.copytree(scenario.base, tmp_path / place))
        (tmp_path / place).mkdir()
        return tmp_path / place

    code, disk = attempt(begun("undisturbed"), None)
    assert code == 0 and disk.calls > 10
    expected, faults = results(tmp_path / "undisturbed"), 0
    for at in range(1, disk.calls + 1, every):
        folder = begun(str(at))
        capsys.readouterr()
        assert attempt(folder, at)[0] == 2
        said = capsys.readouterr().err.strip().splitlines()
        assert said[-1].startswith(f"bilateral: {RUN}/") and "No space left" in said[-1], said
        whole(folder)
        assert left_overs(folder) == []
        assert attempt(folder, None)[0] == 0
        assert differing(results(folder), expected) == {}
        shutil.rmtree(folder)
        faults += 1
    ended(name, {"failed write": faults}, faults)


def test_a_limit_on_the_size_of_files(server, known, folder, ended):
    """`ulimit -f`: the last good checkpoint stays, and no part of the new one."""
    stopped_half_way(server, folder)
    before = results(folder), (folder / RUN / "checkpoint.pt").read_bytes()
    code, said = command(server, WORDS, folder, file_bytes=100_000)
    assert code == 2
    assert said.strip() == f"bilateral: {RUN}/checkpoint.pt: File too large"
    assert left_overs(folder) == []
    assert (folder / RUN / "checkpoint.pt").read_bytes() == before[1]
    assert command(server, WORDS, folder)[0] == 0
    assert results(folder) == results(known["evaluate"].base)
    ended("train", {"file size limit": 1})


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 4 MiB in memory, where it may be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting needs root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk(server, known, small_disk, ended):
    """The run goes on when there is room again."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(3_000_000))
    code, said = command(server, WORDS, small_disk)
    assert code == 2 and said.strip().endswith("No space left on device"), said
    assert said.count("\n") == 1 and left_overs(small_disk) == []
    whole(small_disk)
    ballast.unlink()
    assert command(server, WORDS, small_disk)[0] == 0
    assert results(small_disk) == results(known["evaluate"].base)
    ended("train", {"full disk": 1})


def test_a_disk_that_became_read_only(server, known, small_disk, ended):
    stopped_half_way(server, small_disk)
    remount = ["mount", "-o", "remount,ro", str(small_disk)]
    subprocess.run(remount, check=True)
    code, said = command(server, WORDS, small_disk)
    assert code == 2 and "Read-only file system" in said and said.count("\n") == 1, said
    subprocess.run([*remount[:2], "remount,rw", str(small_disk)], check=True)
    assert command(server, WORDS, small_disk)[0] == 0
    assert results(small_disk) == results(known["evaluate"].base)
    subprocess.run(remount, check=True)  # a finished run answers all the same
    code, said = command(server, WORDS, small_disk)
    assert code == 0 and "already finished" in said
    subprocess.run([*remount[:2], "remount,rw", str(small_disk)], check=True)
    ended("train", {"read-only": 1})


def test_a_file_where_the_folder_should_be(server, known, folder, ended):
    (folder / "runs").write_text("not a folder")
    code, said = command(server, WORDS, folder)
    assert code == 2 and said.count("\n") == 1 and "Traceback" not in said, said
    (folder / "runs").unlink()
    assert command(server, WORDS, folder)[0] == 0
    assert results(folder) == results(known["evaluate"].base)
    ended("train", {"no folder": 1})


def test_a_damaged_checkpoint_is_refused_and_never_read(server, known, folder, tmp_path, ended):
    """Cut short anywhere, any byte flipped; then the run starts again to the same end."""
    stopped_half_way(server, folder)
    path = folder / RUN / "checkpoint.pt"
    content, draw = path.read_bytes(), random.Random(0)
    damaged = tmp_path / "damaged.pt"
    for length in [0, 1, len(content) - 1, *(draw.randrange(len(content)) for _ in range(20))]:
        damaged.write_bytes(content[:length])
        with pytest.raises(UserError, match=r"is damaged .*remove it"):
            read_checkpoint(damaged, "cpu")
    for place in [0, len(content) - 1, *(draw.randrange(len(content)) for _ in range(40))]:
        flipped = bytearray(content)
        flipped[place] ^= 1 << draw.randrange(8)
        damaged.write_bytes(flipped)
        with pytest.raises(UserError, match=r"is damaged .*remove it"):
            read_checkpoint(damaged, "cpu")
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    path.write_bytes(flipped)
    code, said = command(server, WORDS, folder)
    assert code == 2 and said.count("\n") == 1 and "remove it" in said, said
    assert path.read_bytes() == flipped
    path.unlink()
    assert command(server, WORDS, folder)[0] == 0
    assert results(folder) == results(known["evaluate"].base)
    ended("train", {"damaged checkpoint": 1})


def test_weights_that_were_damaged_are_refused(known, tmp_path, server, ended):
    """A flipped byte anywhere is refused, or changes nothing that is read."""
    path = known["evaluate"].base / RUN / "model.safetensors"
    content, draw = path.read_bytes(), random.Random(1)
    expected, damaged = read_about(path), tmp_path / "damaged.safetensors"
    model, other = build_model("small-cnn", 10, 1, (8, 8)), build_model("small-cnn", 10, 1, (8, 8))
    read_weights(path, model)
    refused, header = 0, int.from_bytes(content[:8], "little") + 8
    places = [*range(0, header, 7), *(draw.randrange(header, len(content)) for _ in range(60))]
    for place in places:
        flipped = bytearray(content)
        flipped[place] ^= 1 << draw.randrange(8)
        damaged.write_bytes(flipped)
        try:
            about = read_about(damaged)
            read_weights(damaged, other)
        except UserError:
            refused += 1
            continue
        assert {key: about[key] for key in expected} == expected  # of "sha256" the name may suffer
        ours = model.state_dict()
        assert all(value.equal(ours[name]) for name, value in other.state_dict().items())
    assert refused >= len(places) - 20  # what is left: the digest's own name, and spaces
    folder = tmp_path / "here"
    shutil.copytree(known["evaluate"].base, folder)
    (folder / RUN / "model.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    code, said = command(server, EVALUATE, folder)
    assert code == 2 and said.count("\n") == 1 and "model.safetensors is damaged" in said
    assert not (folder / RUN / "evaluation.json").exists()
    (folder / RUN / "model.safetensors").unlink()  # as the message says
    assert command(server, WORDS, folder)[0] == 0
    assert (folder / RUN / "model.safetensors").read_bytes() == content
    ended("evaluate", {"damaged weights": 1})


def test_two_processes_on_one_folder(server, known, folder, ended):
    """The second is refused with who holds it, and the first does not notice."""
    process = server.start(LONG, folder, folder.parent / "first.txt")
    while not (folder / RUN / "checkpoint.pt").exists():
        assert process.wait(0.01) is None
    path = known["evaluate"].base / RUN / "model.safetensors"
    model, about = build_model("small-cnn", 10, 1, (8, 8)), read_about(path)
    read_weights(path, model)
    for said in ("run", "pictures"):  # weights of this run would not be there yet
        del about[said]
    write_weights(folder / "other.safetensors", model, about)
    (folder / RUN / "model.safetensors").symlink_to(folder / "other.safetensors")
    refused = {
        "evaluate": EVALUATE,
        "diagnose": ["diagnose", RUN, "--images", "10", "--quiet"],
        "transfer": ["transfer", "--sources", RUN, "--targets", RUN, "--out", RUN, "--quiet"],
    }
    for name, words in refused.items():
        second = Fresh([*words, "--device", "cpu"], folder, folder.parent / f"{name}.txt")
        assert second.wait(PATIENCE_SECONDS) == 2
        said = (folder.parent / f"{name}.txt").read_text().splitlines()[-1]
        assert f"bilateral: {RUN} is in use by pid {process.pid} on" in said, (name, said)
        assert "(bilateral train digits-r-mc-la" in said and " since " in said
    (folder / RUN / "model.safetensors").unlink()
    second = Fresh(LONG, folder, folder.parent / "second.txt")
    assert second.wait(PATIENCE_SECONDS) == 2
    assert f"is in use by pid {process.pid}" in (folder.parent / "second.txt").read_text()
    reader = Fresh(["report", RUN], folder, folder.parent / "report.txt")
    assert reader.wait(PATIENCE_SECONDS) == 0  # whoever only reads is not refused
    process.signal(signal.SIGINT)
    assert process.wait(PATIENCE_SECONDS) == 130
    assert left_overs(folder) == []
    ended("train", {"second process": 4})


def test_a_clock_that_jumps(folder, known, monkeypatch, ended):
    """Durations come from a clock that cannot; the others only stand in the lock."""
    clock = iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: (-1) ** next(clock) * 4e9)
    monkeypatch.chdir(folder)
    assert main(WORDS) == 0
    assert results(folder) == results(known["evaluate"].base)
    lines = (folder / RUN / "log.jsonl").read_text().splitlines()
    seconds = [json.loads(line)["seconds"] for line in lines]
    assert seconds == sorted(seconds) and seconds[0] > 0 and seconds[-1] < 600
    ended("train", {"clock": 1})


def test_a_folder_from_another_machine(server, known, tmp_path, ended):
    """Copied while it was in use, to another path: nothing is measured again, nobody holds it."""
    folder = Path(shutil.copytree(known["report"].base, tmp_path / "elsewhere" / "copy"))
    holder = {"pid": 1, "host": "another", "command": "bilateral evaluate", "since": "2020-01-01"}
    (folder / RUN / ".lock").write_text(json.dumps(holder))
    flags = {path: path.read_text() for path in (folder / RUN / "attacks").iterdir()}
    assert command(server, EVALUATE, folder)[0] == 0
    assert {path: path.read_text() for path in (folder / RUN / "attacks").iterdir()} == flags
    assert results(folder) == results(known["report"].base)
    code, said = command(server, WORDS, folder)
    assert code == 0 and "already finished" in said
    assert left_overs(folder) == []
    ended("evaluate", {"moved folder": 1})
