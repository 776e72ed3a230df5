"""The command `bilateral`: finds the command's module and turns what it raises into exit codes."""

import os
import signal
import sys
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from importlib import import_module

import bilateral
from bilateral.commands.printing import one_document
from bilateral.errors import Interrupted, TrainingError, UserError, unknown
from bilateral.signals import stop_with_parent, stoppable

USAGE = """usage: bilateral COMMAND [arguments]     (bilateral COMMAND --help says more)

Train robust image classifiers by bilateral adversarial training, and measure them honestly.

commands:
"""


def program() -> int:
    """The process `bilateral`: before and after the command a Ctrl-C ends it without a word."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _open_what_is_closed()
    stop_with_parent()
    code = main(process=True)
    if _of_several():
        # A thread of gloo may still drop a tensor when the interpreter ends; to take the lock of an
        # interpreter that is going aborts the process (pytorch/pytorch#179291), and torchrun would
        # call a run failed whose files are all written.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _open_what_is_closed() -> None:
    """A closed standard input or output becomes the null device (`bilateral ... >&-`).

    A file that is opened later would otherwise get its number, and with it what libraries print.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the lowest free number is that of the closed one
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _of_several() -> bool:
    """Whether torchrun started this process beside others.

    By its own variable too: on some clusters every shell has a WORLD_SIZE.
    """
    return "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"


def main(arguments: Sequence[str] | None = None, process: bool = False) -> int:
    """Run a command and return its exit code; it may be what the `process` is for."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # Pillow warns of odd pictures that are then refused, or read, in a word of our own.
    warnings.filterwarnings("ignore", module="PIL")
    # torch's compiler advises TF32 on a GPU; training is in bfloat16, and a re-check in float32.
    warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
    warnings.formatwarning = lambda message, *_, **__: f"bilateral: warning: {message}\n"
    try:
        with stoppable():
            return _run(words, process)
    except UserError as error:
        print(f"bilateral: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bilateral: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of a pipe (head, say) has gone; nothing more can be printed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (FileExistsError, NotADirectoryError) as error:
        print(f"bilateral: {error.filename}: a file is in the way of a folder", file=sys.stderr)
        return 2
    except OSError as error:
        named = f"{error.filename}: " if error.filename else ""
        print(f"bilateral: {named}{error.strerror or error}", file=sys.stderr)
        return 2
    except TrainingError as error:
        print(f"bilateral: {error}", file=sys.stderr)
        return 1
    except Interrupted as error:
        then = "; the same command goes on from here" if error.saved else ""
        print(f"bilateral: {error}{then}", file=sys.stderr)
        return 128 + error.number


def _run(words: list[str], process: bool) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        width = max(map(len, COMMANDS))
        lines = [f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items()]
        print(USAGE + "\n".join(lines), flush=True)
        return 0 if words else 2
    if words[0] == "--version":
        print(f"bilateral {bilateral.__version__}")
        return 0
    if words[0] not in COMMANDS:
        raise unknown("command", words[0], COMMANDS)
    if _of_several() and words[0] not in SHARED:
        raise UserError(f"{words[0]} is one process; torchrun is for {' and '.join(SHARED)}")
    as_json = "--json" in words and not {"-h", "--help"} & set(words)
    with one_document(process) if as_json else nullcontext():
        import_module(f"bilateral.commands.{words[0]}").command(words[1:])
    sys.stdout.flush()
    return 0


COMMANDS = {
    "demo": "train and attack two small models on the digits, in about a minute",
    "train": "train a recipe, on your own model and data if you like",
    "evaluate": "attack a trained model",
    "verify": "re-check kept adversarial images against a model, in float32",
    "diagnose": "is the number to be believed? masking checks, curves, and a verdict",
    "transfer": "black-box transfer: images made on some models, shown to others",
    "compare": "runs on the same images: a paired test, and the spread over seeds",
    "report": "one self-contained page of what run folders hold",
    "reproduce": "a table of the paper, trained, measured and printed beside the paper's figures",
    "export": "the trained model for use elsewhere, and its model card",
    "sweep": "a list or grid of configurations under a time budget, ranked on held-out images",
    "bench": "how fast training and attacks are here, beside the machine's limit and the peers'",
    "list": "recipes, models, datasets, attacks, tables",
    "data": "list, fetch and check data sets",
}
"""Each is a module of `bilateral.commands`."""
SHARED = ("train", "evaluate")
"""Those whose work several processes share under torchrun."""
