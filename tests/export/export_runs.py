"""Run folders to export, and a Python that cannot import this package."""

import subprocess
import sys
from pathlib import Path

import torch

from bilateral.cli import main
from bilateral.config import Data, Run
from bilateral.models import build_model
from bilateral.runs import RunFolder
from bilateral.weights import write_weights

BLOCK = """
import sys
class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "bilateral":
            raise ImportError("this package is not installed here")
sys.meta_path.insert(0, Nowhere())
"""


def make_run(
    path: Path,
    model: str = "small-cnn",
    data: str = "digits",
    classes: tuple[str, ...] = tuple("0123456789"),
    channels: int = 1,
    size: int = 8,
    **fields,
) -> RunFolder:
    """A finished run whose batch-norm statistics are not those of a fresh network."""
    folder = RunFolder(path)
    run = Run(model=model, data=Data(name=data), epochs=1, **fields)
    folder.prepare(run, {"bilateral": "0.1.0", "torch": "2.6", "device": "cpu"})
    torch.manual_seed(0)
    network = build_model(model, len(classes), channels, (size, size))
    network.train()
    with torch.no_grad():
        network(torch.rand(8, channels, size, size))
    about = {"classes": list(classes), "channels": channels, "image_size": [size, size]}
    write_weights(folder.weights, network, {**about, "model": model})
    return folder


def python(code: str, cwd: Path, *options: str) -> str:
    """What a Python that cannot import this package prints."""
    done = subprocess.run(
        [sys.executable, *(options or ("-E", "-s")), "-c", BLOCK + code],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def export(*words) -> int:
    return main(["export", *map(str, words)])
