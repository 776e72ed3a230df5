"""Several `bilateral` commands at once, each in its own process.

A network of CIFAR's size leaves much of a large GPU idle, so several at once finish sooner.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from bilateral.errors import Interrupted, TrainingError, UserError
from bilateral.machine import Machine
from bilateral.runtime import StopRequest
from bilateral.signals import PARENT

Words = Sequence[str]


def machine_words(machine: Machine) -> list[str]:
    """The options of the command line that give a machine's settings."""
    words = []
    for name, value in machine.model_dump(exclude_defaults=True).items():
        option = f"--machine.{name.replace('_', '-')}"
        words += [option] if value is True else [option, str(value)]
    return words


def run_together(
    commands: Mapping[str, Words],
    jobs: int,
    done: Callable[[str], None] = lambda _: None,
    may_start: Callable[[], bool] = lambda: True,
) -> None:
    """Run `bilateral` commands, `jobs` at a time, and start no more once `may_start` is false.

    If one fails or a signal arrives, the others are asked to stop and save what they have; if this
    process is killed, they stop by themselves.
    """
    left, running = list(commands), dict[str, tuple[subprocess.Popen[bytes], IO[bytes]]]()
    stop = StopRequest()
    try:
        with stop.listening():
            while (left or running) and stop.number is None:
                if left and not may_start():
                    left.clear()
                while left and len(running) < jobs:
                    name = left.pop(0)
                    running[name] = _started(commands[name])
                time.sleep(0.1)
                ended = [name for name, (child, _) in running.items() if child.poll() is not None]
                for name in ended:
                    child, said = running.pop(name)
                    _check(name, child, said)
                    done(name)
    finally:
        for child, _ in running.values():
            child.terminate()
        for child, said in running.values():
            child.wait()
            said.close()
    if stop.number is not None:
        raise Interrupted(stop.number)


def _started(words: Words) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    """A command and its messages; it has its own session, so that Ctrl-C reaches only us."""
    said = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the command has ended
    child = subprocess.Popen(
        [sys.executable, "-m", "bilateral", *words],
        stdout=subprocess.DEVNULL,
        stderr=said,
        start_new_session=True,
        env={**os.environ, PARENT: str(os.getpid())},
    )
    return child, said


def _check(name: str, child: "subprocess.Popen[bytes]", said: IO[bytes]) -> None:
    """Raise the error of a command that failed, with its own message."""
    with said:
        said.seek(0)
        lines = said.read().decode(errors="replace").strip().splitlines()
    if child.returncode == 2:
        raise UserError(f"{name}: {lines[-1].removeprefix('bilateral: ') if lines else 'refused'}")
    if child.returncode:
        raise TrainingError("\n".join([*lines, f"{name} ended with status {child.returncode}"]))
