"""The command `bilateral`: finds the command's module and turns its exceptions into exit codes."""

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

USAGE = """usage: bilateral COMMAND [arguments]     (bilateral COMMAND --help for more)

Train robust image classifiers by bilateral adversarial training, and measure them honestly.

commands:
"""


def program() -> int:
    """The process `bilateral`: before and after the command, Ctrl-C ends it silently."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _open_what_is_closed()
    stop_with_parent()
    code = main(process=True)
    if _of_several():
        # A thread of gloo may still free a tensor while the interpreter shuts down; taking the
        # interpreter's lock then aborts the process (pytorch/pytorch#179291), and torchrun would
        # report a run as failed although all its files are written.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _open_what_is_closed() -> None:
    """Replace closed standard streams (`bilateral ... >&-`) by the null device.

    A file opened later would otherwise get their descriptor, and with it what libraries print.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # opening takes the lowest free descriptor: the closed one
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _of_several() -> bool:
    """Whether torchrun started this process as one of several.

    Its own variable is checked too: on some clusters every shell has a WORLD_SIZE.
    """
    return "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"


def main(arguments: Sequence[str] | None = None, process: bool = False) -> int:
    """Run a command and return its exit code; `process` says that nothing else runs in it."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # Pillow warns about odd pictures, which are then read, or refused with our own message.
    warnings.filterwarnings("ignore", module="PIL")
    # torch's compiler advises TF32 on a GPU; training uses bfloat16, and re-checks full float32.
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
        print(f"bilateral: {error.filename}: a file is where a folder is needed", file=sys.stderr)
        return 2
    except OSError as error:
        named = f"{error.filename}: " if error.filename else ""
        print(f"bilateral: {named}{error.strerror or error}", file=sys.stderr)
        return 2
    except TrainingError as error:
        print(f"bilateral: {error}", file=sys.stderr)
        return 1
    except Interrupted as error:
        then = "; the same command resumes from here" if error.saved else ""
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
        raise UserError(f"{words[0]} runs in one process; torchrun is for {' and '.join(SHARED)}")
    as_json = "--json" in words and not {"-h", "--help"} & set(words)
    with one_document(process) if as_json else nullcontext():
        import_module(f"bilateral.commands.{words[0]}").command(words[1:])
    sys.stdout.flush()
    return 0


COMMANDS = {
    "demo": "train and attack two small models on the digits, in about a minute",
    "train": "train a recipe, with your own model and data if you like",
    "evaluate": "attack a trained model",
    "verify": "re-check kept adversarial images against a model, in float32",
    "diagnose": "can the number be trusted? masking checks, curves, and a verdict",
    "transfer": "black-box transfer: adversarial images made on some models, shown to others",
    "compare": "compare runs on the same images: a paired test, and the spread over seeds",
    "report": "the contents of run folders as one self-contained page",
    "reproduce": "a table of the paper, trained, measured and printed beside the paper's figures",
    "export": "the trained model for use elsewhere, and its model card",
    "sweep": "a list or grid of configurations under a time budget, ranked on held-out images",
    "bench": "speed of training and attacks here, against the machine's limit and other libraries",
    "list": "recipes, models, datasets, attacks, tables",
    "data": "list, fetch and check data sets",
}
"""Each is a module of `bilateral.commands`."""
SHARED = ("train", "evaluate")
"""Commands whose work several processes can share under torchrun."""
