"""Commands started, disturbed at a moment that a seed decides, and started again by the same words.

Between two attempts the folder may be moved, and the times of its files may jump.
"""

import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
KINDS = {
    "SIGKILL": (signal.SIGKILL,),
    "SIGTERM": (signal.SIGTERM,),
    "Ctrl-C": (signal.SIGINT,),
    "Ctrl-C twice": (signal.SIGINT, signal.SIGINT),
    "SIGTERM, then SIGKILL": (signal.SIGTERM, signal.SIGKILL),
}
WEIGHTS = (5, 2, 2, 1, 1)
CODES = {signal.SIGINT: (130, -signal.SIGINT), signal.SIGTERM: (143, -signal.SIGTERM)}
PATIENCE_SECONDS = 120


class Server:
    """The process of `fault_server.py`."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "fault_server.py"), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def start(self, words: Sequence[str], folder: Path, said: Path, **more: Any) -> "Forked":
        """A command in a process of its own."""
        request = {"words": list(words), "folder": str(folder), "said": str(said), **more}
        assert self.process.stdin is not None
        self.process.stdin.write((json.dumps(request) + "\n").encode())
        self.process.stdin.flush()
        return Forked(self, int(self.answer(PATIENCE_SECONDS) or 0))

    def answer(self, seconds: float) -> str | None:
        """The next line, if it comes in time."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout.fileno()], [], [], seconds)
        if not ready:
            return None
        line = b""
        while not line.endswith(b"\n"):
            piece = os.read(self.process.stdout.fileno(), 1)
            assert piece, "the server is gone"
            line += piece
        return line.decode()

    def close(self) -> None:
        """End the server; no command runs any more."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@dataclass
class Forked:
    """A command that the server runs."""

    server: Server
    pid: int
    code: int | None = None

    def wait(self, seconds: float) -> int | None:
        """The exit code, if it ends in time."""
        if self.code is None and (line := self.server.answer(seconds)) is not None:
            self.code = int(line)
        return self.code

    def signal(self, number: int) -> None:
        """Send a signal."""
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(self.pid, number)


class Fresh:
    """A command as the shell starts it, imports and all."""

    def __init__(self, words: Sequence[str], folder: Path, said: Path) -> None:
        with said.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "bilateral", *words], cwd=folder, stdout=out, stderr=out
            )

    def wait(self, seconds: float) -> int | None:
        """The exit code, if it ends in time."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def signal(self, number: int) -> None:
        """Send a signal."""
        self.process.send_signal(number)


@dataclass
class Scenario:
    """A command, what lies there before it, and what it must leave."""

    name: str
    words: Sequence[str]
    outcome: Callable[[Path], dict[str, Any]]
    """By file, everything that must be the same as without a fault; nothing that measures time."""
    whole: Callable[[Path], None]
    """Fails where some file is half-written; called after every fault."""
    base: Path | None = None
    """A folder to begin with a copy of."""
    fresh: bool = True
    """Whether a process of the shell knows what the server knows."""


@dataclass
class Tally:
    """What was injected, and how it ended."""

    faults: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    right: int = 0


class Campaign:
    """A scenario disturbed again and again, by the schedule that a seed decides."""

    def __init__(self, scenario: Scenario, server: Server, place: Path, seed: int) -> None:
        self.scenario, self.server, self.place = scenario, server, place
        self.random = random.Random(f"{scenario.name} {seed}")
        self.said = place / "said.txt"
        self.tally, self.folders = Tally(), 0
        started = time.monotonic()
        folder = self._folder()
        self._finish(folder)
        self.seconds = time.monotonic() - started
        self.expected = scenario.outcome(folder)
        shutil.rmtree(folder)

    def _folder(self) -> Path:
        self.folders += 1
        folder = self.place / f"{self.scenario.name}-{self.folders}"
        if self.scenario.base is None:
            folder.mkdir()
        else:
            shutil.copytree(self.scenario.base, folder)
        return folder

    def _finish(self, folder: Path) -> None:
        process = self.server.start(self.scenario.words, folder, self.said)
        code = process.wait(PATIENCE_SECONDS)
        assert code == 0, f"exit code {code}: {self.said.read_text()}"

    def run(self, faults: int) -> None:
        """Disturb one run so many times at most, let it end, and look at what it left."""
        folder = self._folder()
        for _ in range(faults):
            if self._attempt(folder):
                break
            self.scenario.whole(folder)
            folder = self._between(folder)
        self._finish(folder)
        self.tally.runs += 1
        assert differing(self.scenario.outcome(folder), self.expected) == {}
        assert left_overs(folder) == []
        self.tally.right += 1
        shutil.rmtree(folder)

    def _attempt(self, folder: Path) -> bool:
        """One start and one fault; whether it ended before the fault came."""
        words, draw = self.scenario.words, self.random
        kind = draw.choices(list(KINDS), WEIGHTS)[0]
        is_fresh = self.scenario.fresh and draw.random() < 0.08
        moment = (self.seconds + 2.5 * is_fresh) * draw.random() ** 1.3
        process: Forked | Fresh
        if is_fresh:
            process = Fresh(words, folder, self.said)
        else:
            process = self.server.start(words, folder, self.said)
        if process.wait(moment) is not None:
            return True
        for number in KINDS[kind]:
            process.signal(number)
            if len(KINDS[kind]) > 1:
                process.wait(draw.random() * 0.02)
        code = process.wait(PATIENCE_SECONDS)
        self.tally.faults[kind] += 1
        self._check_end(kind, code)
        return code == 0

    def _check_end(self, kind: str, code: int | None) -> None:
        """A signal that asks is answered by its exit code and without a traceback."""
        said = self.said.read_text()
        if kind == "SIGKILL" or code == -signal.SIGKILL:
            return
        assert code in (0, *CODES[KINDS[kind][0]]), f"{kind}: exit code {code}: {said}"
        assert "Traceback" not in said, f"{kind}: {said}"

    def _between(self, folder: Path) -> Path:
        """What may happen before the next attempt: a move, and clocks that were wrong."""
        if self.random.random() < 0.2:
            folder = folder.rename(folder.with_name(f"{folder.name}-moved"))
        if self.random.random() < 0.2:
            for path in folder.rglob("*"):
                moment = self.random.choice((0, 1_000_000_000, 4_000_000_000))
                os.utime(path, (moment, moment))
        return folder


def differing(found: Any, expected: Any) -> dict[str, Any]:
    """Where two JSON values differ: the path to each place, and both values there."""
    if not isinstance(found, dict) or not isinstance(expected, dict):
        return {} if found == expected else {"": (found, expected)}
    return {
        f"{key}/{path}": values
        for key in found.keys() | expected.keys()
        for path, values in differing(found.get(key), expected.get(key)).items()
    }


def left_overs(folder: Path) -> list[str]:
    """Hidden and temporary files, which no finished command leaves."""
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.name.startswith(".") or path.suffix == ".tmp" or "partial" in path.name
    )
