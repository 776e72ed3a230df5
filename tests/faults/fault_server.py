"""A process that has imported everything and forks one for every command that it reads.

torch takes two seconds to import; so commands start in milliseconds, and a hundred of them can be
killed in a minute at moments of their real work. A line is JSON: `words`, `folder`, `said`, and
`file_bytes` for the largest file that may be written. It answers with the process's number, and
when that has ended with its exit code, negative for a signal.
"""

import json
import os
import resource
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
from fault_data import add_data_set

from bilateral import cli
from bilateral.cli import COMMANDS

ASKING = (signal.SIGINT, signal.SIGTERM)


def import_everything() -> None:
    """What the commands import when they are called, so that no child has to."""
    import importlib

    for name in COMMANDS:
        importlib.import_module(f"bilateral.commands.{name}")
    for name in ("evaluation.campaign", "models.small", "paper.reproduce", "report.page"):
        importlib.import_module(f"bilateral.{name}")
    importlib.import_module("torch._dynamo")  # which the first optimiser imports, for a second


def run(request: dict[str, Any]) -> int:
    """The command in this process, which is a child of the server."""
    os.chdir(request["folder"])
    said = os.open(request["said"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream in (1, 2):
        os.dup2(said, stream)
    if request.get("file_bytes"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_bytes"],) * 2)
    sys.argv = ["bilateral", *request["words"]]
    return cli.program()


def child(request: dict[str, Any]) -> None:
    """Run a request and leave, past everything that belongs to the server."""
    code = 1
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKING)
        code = run(request)
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, ASKING)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Serve until standard input ends."""
    torch.set_num_threads(1)
    if len(sys.argv) > 1:
        add_data_set(Path(sys.argv[1]), sys.argv[2])
    import_everything()
    answers = os.dup(1)
    for line in iter(sys.stdin.readline, ""):
        request = json.loads(line)
        # A signal that comes before the command has begun is the command's all the same.
        signal.pthread_sigmask(signal.SIG_BLOCK, ASKING)
        pid = os.fork()
        if pid == 0:
            child(request)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKING)
        os.write(answers, f"{pid}\n".encode())
        _, status = os.waitpid(pid, 0)
        os.write(answers, f"{os.waitstatus_to_exitcode(status)}\n".encode())


if __name__ == "__main__":
    main()
