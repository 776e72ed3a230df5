"""A folder's lock: one holder, told by name, gone with its process; left-overs of the killed."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from bilateral import locks
from bilateral.errors import UserError
from bilateral.locks import is_at, locked, try_lock
from bilateral.processes import Processes
from bilateral.storage import (
    append_line,
    temporary_folder,
    tidy,
    write_atomic,
    write_json,
    writing_to,
)

HOLD = """
import sys, time
from pathlib import Path
from bilateral.storage import writing_to
with writing_to(Path(sys.argv[-1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds a folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, "train", str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_second_process_is_refused_with_who_holds_it(holder, tmp_path):
    said = rf"run is in use by pid {holder.pid} on {socket.gethostname()} \(bilateral train .*run\)"
    with (
        pytest.raises(UserError, match=said + r" since \d{4}-\d\d-\d\dT[\d:]+\+00:00$"),
        writing_to(tmp_path / "run"),
    ):
        pass
    with writing_to(tmp_path / "other"):
        pass


def test_a_killed_process_holds_nothing(holder, tmp_path):
    """Its file stays until the next one is done: that it is there means nothing."""
    holder.kill()
    holder.wait()
    assert names(tmp_path / "run") == [".lock"]
    with writing_to(tmp_path / "run"):
        assert json.loads((tmp_path / "run" / ".lock").read_text())["pid"] == os.getpid()
    assert names(tmp_path / "run") == []


def test_a_holder_is_waited_for(holder, tmp_path):
    os.kill(holder.pid, signal.SIGSTOP)
    started = time.monotonic()
    with pytest.raises(UserError), writing_to(tmp_path / "run", wait_seconds=0.3):
        pass
    assert time.monotonic() - started >= 0.3
    with (
        subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -9 {holder.pid}"]),
        writing_to(tmp_path / "run", wait_seconds=20),
    ):
        pass


FORK = HOLD.replace(
    '    print("held", flush=True)',
    """    import os
    if os.fork() == 0:
        sys.stdin.read()
        os._exit(0)
    print("held", flush=True)""",
)


def test_a_forked_worker_does_not_keep_the_lock(tmp_path):
    """One that outlives a killed process by seconds, as a data loader's may."""
    with subprocess.Popen(
        [sys.executable, "-c", FORK, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "held\n"
        process.kill()
        process.wait()  # its worker waits on, for standard input to end
        # It lets go as soon as it runs at all, which on a busy machine is not at once.
        with locked(tmp_path / ".lock", "here", wait_seconds=10):
            pass


LEAVE = """
import os, sys
from pathlib import Path
from bilateral.locks import locked
path = Path(sys.argv[-1])
with locked(path, "here"):
    child = os.fork()
    if child:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), path.exists())
"""


def test_a_forked_worker_that_leaves_takes_no_lock_with_it(tmp_path):
    """It comes out in peace, and what it leaves behind is still its parent's."""
    words = [sys.executable, "-c", LEAVE, str(tmp_path / ".lock")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("0 True\n", "")
    assert not (tmp_path / ".lock").exists()


def test_whoever_opened_a_file_that_was_removed_tries_again(tmp_path, monkeypatch):
    """Between opening and locking the holder ends, and somebody else takes a new file."""
    path, opened = tmp_path / ".lock", os.open
    raced = []

    def slow_open(*arguments, **named):
        handle = opened(*arguments, **named)
        if not raced:
            raced.append(handle)
            path.unlink()
        return handle

    monkeypatch.setattr(locks.os, "open", slow_open)
    with locked(path, "here"):
        assert path.exists()
        with pytest.raises(UserError, match="here is in use by pid"), locked(path, "here"):
            pass
    assert not path.exists()


NO_LOCKS = [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EBADF]


@pytest.mark.parametrize("code", NO_LOCKS, ids=errno.errorcode.get)
def test_without_locks_work_goes_on(tmp_path, monkeypatch, code):
    """And what looks abandoned stays: nobody can say whether it is."""
    left = left_over(tmp_path / "run", "file")

    def refuse(handle, kind):
        raise OSError(code, "no locks here")

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    with writing_to(tmp_path / "run"):
        write_atomic(tmp_path / "run" / "file", b"content")
    assert names(tmp_path) == [f"run/{left.name}", "run/file"]


def test_another_fault_of_the_file_system_is_told(tmp_path, monkeypatch):
    def fail(handle, kind):
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(locks.fcntl, "flock", fail)
    with pytest.raises(OSError, match="input/output"), writing_to(tmp_path):
        pass


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"pid": 1}', b"\xff" * 5000])
def test_a_lock_file_that_says_nothing(tmp_path, content):
    path = tmp_path / ".lock"
    with locked(path, "here"):
        path.write_bytes(content)
        with pytest.raises(UserError, match="in use by another process"), locked(path, "here"):
            pass


def test_a_longer_name_of_an_earlier_holder_is_overwritten(tmp_path):
    path = tmp_path / ".lock"
    path.write_text("x" * 5000)
    with (
        locked(path, "here"),
        pytest.raises(UserError, match=f"in use by pid {os.getpid()} "),
        locked(path, "here"),
    ):
        pass


def test_a_lock_holds_on_a_full_disk(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(locks.os, "pwrite", full)
    path = tmp_path / ".lock"
    with (
        locked(path, "here"),
        pytest.raises(UserError, match="in use by another process"),
        locked(path, "here"),
    ):
        pass


def test_somebody_elses_lock_of_the_same_name_is_left_alone(tmp_path):
    """The folder was removed and made again by another process while we held it."""
    path = tmp_path / ".lock"
    with locked(path, "here"):
        path.unlink()
        path.write_text("another's")
    assert path.read_text() == "another's"


@pytest.mark.timeout(30)  # followed, it would never be the file of that name
def test_a_link_is_no_lock(tmp_path):
    """Whoever plants one must not have what it points to emptied, nor be taken for the file."""
    aim, path = tmp_path / "precious", tmp_path / ".lock"
    aim.write_text("content")
    path.symlink_to(aim)
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)), locked(path, "here"):
        pass
    assert aim.read_text() == "content" and path.is_symlink()
    with aim.open() as file:
        assert is_at(file.fileno(), aim) and not is_at(file.fileno(), path)


def test_a_folder_that_stays_empty_is_removed_again(tmp_path):
    with pytest.raises(RuntimeError), writing_to(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b" / ".lock").exists()
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with writing_to(tmp_path / "a" / "b"):
        write_atomic(tmp_path / "a" / "b" / "file", b"x")
    assert names(tmp_path) == ["a/b/file"]


def left_over(folder, name):
    """What a killed `write_atomic` leaves."""
    folder.mkdir(parents=True, exist_ok=True)
    handle, path = tempfile.mkstemp(dir=folder, prefix=f".{name}.", suffix=".tmp")
    os.write(handle, b"half")
    os.close(handle)
    return Path(path)


def test_left_overs_of_killed_processes_go_and_nothing_else(tmp_path):
    for folder in ("", "attacks", "adversarial/pgd20@8-255", "flags", "transfer/flags/fgsm@8-255"):
        left_over(tmp_path / folder, "file.json")
    others = [".hidden", "notes.tmp", ".editor.swp.tmp", ".x.UPPERCAS.tmp", "mine/.a.abcdefgh.tmp"]
    others += ["x.a.abcdefgh.tmp", ".a.abcdefgh.tmp.bak", ".folder.abcdefgh.tmp/file"]
    for name in others:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("somebody's")
    (tmp_path / ".link.abcdefgh.tmp").symlink_to(tmp_path / ".hidden")
    with writing_to(tmp_path):
        assert names(tmp_path) == sorted([*others, ".link.abcdefgh.tmp", ".lock"])


def test_a_file_that_is_being_written_is_nobodys_left_over(tmp_path):
    """`report` takes no lock: its page must survive an `evaluate` that begins."""
    live = left_over(tmp_path, "report.html")
    handle = os.open(live, os.O_RDWR)
    assert try_lock(handle)
    with writing_to(tmp_path):
        assert live.exists()
    os.close(handle)
    for name in ("other", "report"):
        write_atomic(tmp_path / name, b"x")
        assert live.exists(), "not that file's left-over"
    write_atomic(tmp_path / "report.html", b"x")
    assert names(tmp_path) == ["other", "report", "report.html"]


def test_a_temporary_file_that_is_taken_for_a_left_over_is_made_again(tmp_path, monkeypatch):
    """A cleaner comes between its making and its lock."""
    make, made = tempfile.mkstemp, []

    def raced(**named):
        handle, name = make(**named)
        made.append(name)
        if len(made) == 1:
            Path(name).unlink()
        return handle, name

    monkeypatch.setattr(tempfile, "mkstemp", raced)
    write_atomic(tmp_path / "file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content" and len(made) == 2


def test_tidy_leaves_what_is_in_use(holder, tmp_path):
    run = tmp_path / "run"
    left = left_over(run, "model.safetensors")
    tidy(run)
    assert left.exists()
    holder.kill()
    holder.wait()
    tidy(run)
    assert names(run) == []
    tidy(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_temporary_folders_of_killed_processes_go(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "ours-abc" / "deep").mkdir(parents=True)
    (tmp_path / "ours-abc" / "deep" / "file").write_text("half")
    (tmp_path / "others-abc").mkdir()
    with temporary_folder("ours-") as one:
        (one / "file").write_text("x")
        with temporary_folder("ours-") as other:
            assert one.exists() and other.exists() and not (tmp_path / "ours-abc").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["others-abc"]


def test_temporary_folders_of_other_people_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "ours-abc").mkdir()
    monkeypatch.setattr("bilateral.storage.os.getuid", lambda: os.geteuid() + 1)
    with temporary_folder("ours-"):
        assert (tmp_path / "ours-abc").exists()


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o002, 0o664)])
def test_results_can_be_read_by_whom_the_umask_lets(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        write_atomic(tmp_path / "file", b"x")
        assert os.umask(umask) == umask, "left as it was"
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode


def test_a_file_gets_its_name_when_it_is_on_disk_and_before_it_is_let_go(tmp_path, monkeypatch):
    """A crash after the rename must not find it empty, nor a cleaner take it before."""
    path, fsync, replace, seen = tmp_path / "file", os.fsync, Path.replace, []

    def flushed(handle):
        seen.append(("flushed", os.fstat(handle).st_size, path.exists()))
        fsync(handle)

    def renamed(temporary, target):
        with temporary.open() as other:
            seen.append(("renamed", try_lock(other.fileno())))
        return replace(temporary, target)

    monkeypatch.setattr("bilateral.storage.os.fsync", flushed)
    monkeypatch.setattr(Path, "replace", renamed)
    write_atomic(path, b"content")
    assert seen == [("flushed", 7, False), ("renamed", False)]


def test_a_write_that_fails_names_the_file_and_not_the_temporary_one(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("bilateral.storage.os.fsync", full)
    for write in (lambda path: write_atomic(path, b"x"), lambda path: append_line(path, "x")):
        with pytest.raises(OSError, match="No space left") as failed:
            write(tmp_path / "file")
        assert failed.value.filename == str(tmp_path / "file")
        assert [name for name in names(tmp_path) if name.endswith(".tmp")] == []


def test_json_holds_no_nan(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "file.json", {"accuracy": float("nan")})
    assert names(tmp_path) == []


def test_a_file_under_another_name_is_not_the_same(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("x")
    other.write_text("x")
    handle = os.open(one, os.O_RDONLY)
    assert is_at(handle, one) and not is_at(handle, other) and not is_at(handle, tmp_path / "no")
    os.close(handle)


def test_one_process_of_several_takes_the_lock_and_all_are_refused(tmp_path, monkeypatch):
    """As under torchrun, with what the first one says handed to the second."""
    told = []

    def gather(self, value):
        told.append(value) if self.first else None
        return [told[-1], ""]

    monkeypatch.setattr(Processes, "gather", gather)
    first, second = Processes(0, 2), Processes(1, 2)
    with first.writing_to(tmp_path), second.writing_to(tmp_path):
        assert names(tmp_path) == [".lock"]
        with pytest.raises(UserError, match="in use by pid"), first.writing_to(tmp_path):
            pass
        with pytest.raises(UserError, match="in use by pid"), second.writing_to(tmp_path):
            pass
    assert told[0] == "" and names(tmp_path) == []
