"""File locks that vanish with their process, however it dies; no torch.

They are the operating system's advisory locks (`flock`). On a file system without them, work
continues unlocked.
"""

import errno
import json
import os
import shlex
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bilateral.errors import UserError

if sys.platform != "win32":
    import fcntl

_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_held: set[int] = set()


def _leave_to_parent() -> None:
    """A forked worker must not keep a lock alive after the process that took it."""
    for handle in _held:
        os.close(handle)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


def try_lock(handle: int) -> bool | None:
    """Lock an open file; False if another process has it, None if there are no locks here."""
    if sys.platform == "win32":
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in (*_WITHOUT_LOCKS, errno.EBADF):  # EBADF: a folder on NFS
            return None
        raise
    return True


def is_at(handle: int, path: Path) -> bool:
    """Whether an open file is still the one at that path."""
    try:
        there = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(handle), there)


@contextmanager
def locked(path: Path, what: str, wait_seconds: float = 0.0) -> Iterator[None]:
    """Hold the lock file at `path`; a UserError says who holds it already.

    The file is removed before its lock is released, so a process that waited for that very file
    finds that it is no longer the one at `path`, and tries again.
    """
    until = time.monotonic() + wait_seconds
    while (handle := _taken(path)) is None:
        if time.monotonic() >= until:
            raise UserError(f"{what} is in use by {_holder(path)}")
        time.sleep(0.02)
    _held.add(handle)
    try:
        yield
    finally:
        with suppress(OSError):  # a folder that was removed meanwhile takes its lock with it
            if is_at(handle, path):
                path.unlink()
        if handle in _held:  # a forked worker has closed it
            _held.remove(handle)
            os.close(handle)


def _taken(path: Path) -> int | None:
    """The locked file at `path`, with our name in it; None if another process has it."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:  # its holder removed the folder that it had made for it
            continue
        try:
            if try_lock(handle) is False:
                os.close(handle)
                return None
            if not is_at(handle, path):  # its holder removed it when it was done
                os.close(handle)
                continue
            with suppress(OSError):  # the lock holds even on a full disk
                os.ftruncate(handle, 0)
                os.pwrite(handle, json.dumps(_own_name()).encode(), 0)
        except BaseException:
            os.close(handle)
            raise
        return handle


def _own_name() -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "command": shlex.join(["bilateral", *sys.argv[1:]])[:200],
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _holder(path: Path) -> str:
    """Who holds a lock, in words."""
    try:
        with path.open("rb") as file:
            name = json.loads(file.read(4096))
        pid, host, command, since = (name[key] for key in ("pid", "host", "command", "since"))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "another process"
    return f"pid {pid} on {host} ({command}) since {since}"
