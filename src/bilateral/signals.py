"""Ctrl-C and SIGTERM as exceptions, so that temporary files are removed on the way out.

Python may lose such an exception or wrap it in another if it arrives during an import, the creation
of a class or the callback of a weak reference. A command that was asked to stop ends all the same.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from bilateral.errors import Interrupted

AGAIN_SECONDS = 0.001
"""Seconds after which a lost exception is raised again, outside the code that lost it."""


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise `KeyboardInterrupt` or `Interrupted` inside when a signal asks to stop."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked: list[int] = []
    replaced: dict[int, Any] = {}

    def stop(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        raise _stopped(number)

    def stop_again(number: int, frame: FrameType | None) -> None:
        if _within(frame, lost.__code__):  # on a busy machine: it would be lost here again
            return
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise _stopped(asked[-1])

    def lost(unraisable: "sys.UnraisableHookArgs") -> None:
        if not isinstance(unraisable.exc_value, (Interrupted, KeyboardInterrupt)):
            hook(unraisable)
            return
        if not asked:  # a StopRequest's, which raises it again by itself
            return
        replaced.setdefault(signal.SIGALRM, signal.signal(signal.SIGALRM, stop_again))
        signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS, AGAIN_SECONDS)

    hook, sys.unraisablehook = sys.unraisablehook, lost
    for number in (signal.SIGINT, signal.SIGTERM):
        replaced[number] = signal.signal(number, stop)
    try:
        yield
    except (Interrupted, KeyboardInterrupt):
        raise
    except Exception as error:
        if asked:
            raise _stopped(asked[-1]) from error
        raise
    finally:
        if signal.SIGALRM in replaced:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for replaced_number, handler in replaced.items():
            signal.signal(replaced_number, handler)
        sys.unraisablehook = hook


PARENT = "BILATERAL_PARENT"
"""Environment variable with the id of the process that a command works for."""
LOOK_SECONDS = 1.0


def stop_with_parent() -> None:
    """If this command works for another process, stop once that process is gone."""
    parent = os.environ.pop(PARENT, None)
    if parent is not None:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: str) -> None:
    while str(os.getppid()) == parent:
        time.sleep(LOOK_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


def _within(frame: FrameType | None, code: CodeType) -> bool:
    """Whether a frame, or one that called it, runs a function's code."""
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


def _stopped(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else Interrupted(number, saved=False)
