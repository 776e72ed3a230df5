"""A fuzz campaign: damaged files of every format read in a process with little memory.

Each outcome is right data or a refusal in one line. `python campaign.py --inputs 5000` prints a
table; with `--json` what a test needs. A format has a process of its own, forked from one that has
imported everything, with 2 GiB of memory above that and ten seconds for an input.
"""

import argparse
import json
import os
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from formats import FORMATS
from fuzz_format import Format

from bilateral.errors import UserError

MEMORY = 2 * 2**30
SECONDS = 10
LONGEST_MESSAGE = 4000
PAYLOAD = "made-by-a-payload"


class Hang(BaseException):
    """An input took too long; no reader may catch it."""


def outcome(form: Format, content: bytes, folder: Path) -> str:
    """`right`, `refused`, or what went wrong."""
    signal.alarm(SECONDS)
    try:
        form.read(content, folder)
    except UserError as error:
        if isinstance(error.__context__, MemoryError):
            return f"more than {MEMORY:,} bytes of memory"
        if len(str(error)) > LONGEST_MESSAGE:
            return f"a message of {len(str(error))} letters"
        return "refused"
    except Hang:
        return f"no answer in {SECONDS} seconds"
    except BaseException as error:
        return f"{type(error).__name__}: {error!s:.200}"
    finally:
        signal.alarm(0)
    return "right"


def campaign(form: Format, inputs: int, seed: int) -> dict[str, Any]:
    """Try damaged inputs; the first of each kind of failure is kept under the system's /tmp."""
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", module="PIL")
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))

    def too_long(number: int, frame: FrameType | None) -> None:
        raise Hang

    signal.signal(signal.SIGALRM, too_long)
    counts: Counter[str] = Counter()
    failures: dict[str, str] = {}
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.chdir(folder)
        whole = form.prepare(folder)
        if (found := outcome(form, whole, folder)) != "right":
            failures[f"the whole file: {found}"] = ""
        for number in range(inputs):
            random = Random(f"{seed} {form.name} {number}")
            content = form.damaged(random, whole)
            found = outcome(form, content, folder)
            counts[found if found in ("right", "refused") else "else"] += 1
            if found not in ("right", "refused") and found not in failures and len(failures) < 20:
                kept = Path(tempfile.gettempdir()) / f"fuzz-{form.name}-{seed}-{number}"
                kept.write_bytes(content)
                failures[found] = str(kept)
        if list(folder.rglob(PAYLOAD)):
            failures["a payload was executed"] = ""
    return {
        "name": form.name,
        "inputs": inputs,
        "right": counts["right"],
        "refused": counts["refused"],
        "else": counts["else"],
        "seconds": time.monotonic() - started,
        "failures": failures,
    }


def forked(form: Format, inputs: int, seed: int) -> dict[str, Any]:
    """A campaign in a process of its own: one that crashes is a failure like others."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        with os.fdopen(writer, "w") as out:
            json.dump(campaign(form, inputs, seed), out)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    _, status = os.waitpid(child, 0)
    if status or not text:
        crash = {f"the process ended with status {status}": ""}
        empty = dict.fromkeys(("inputs", "right", "refused", "else", "seconds"), 0)
        return {"name": form.name, **empty, "failures": crash}
    return dict(json.loads(text))


def line(found: dict[str, Any]) -> str:
    """A format's line of the table."""
    numbers = f"{found['inputs']:>8}{found['right']:>8}{found['refused']:>9}{found['else']:>6}"
    return f"{found['name']:<22}{numbers}{found['seconds']:>9.1f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--formats", nargs="*", default=list(FORMATS))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    results = []
    for name in given.formats:
        found = forked(FORMATS[name], given.inputs, given.seed)
        results.append(found)
        if not given.json:
            print(line(found), flush=True)
            for failure, kept in found["failures"].items():
                print(f"  {failure} {kept}")
    if given.json:
        json.dump(results, sys.stdout)
    return int(any(found["failures"] for found in results))


if __name__ == "__main__":
    raise SystemExit(main())
