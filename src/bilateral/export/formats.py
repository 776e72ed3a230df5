"""The formats of an export: what each writes, and how it is loaded elsewhere; no torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FormatEntry:
    """A line of the table; `loading` is Python, with `SHAPE` where an image's shape goes."""

    summary: str
    files: tuple[str, ...]
    needs: str
    loading: str

    def loading_for(self, shape: tuple[int, ...]) -> str:
        """How it is loaded and asked for the logits of five images of this shape."""
        return self.loading.replace("SHAPE", ", ".join(map(str, shape)))


FORMATS: dict[str, FormatEntry] = {
    "safetensors": FormatEntry(
        "the weights, and the network's code as one Python file",
        ("model.safetensors", "model.py"),
        "torch and safetensors",
        """\
import torch
from model import about, load  # model.py, beside the weights

network = load()
logits = network(torch.rand(5, SHAPE))
classes = about()["classes"]
""",
    ),
    "torch": FormatEntry(
        "a torch.export program, weights and code in one file",
        ("model.pt2",),
        "torch",
        """\
import json

import torch

extra = {"about.json": ""}
network = torch.export.load("model.pt2", extra_files=extra).module()
logits = network(torch.rand(5, SHAPE))
classes = json.loads(extra["about.json"])["classes"]
""",
    ),
    "onnx": FormatEntry(
        "an ONNX model, weights and code in one file",
        ("model.onnx",),
        "onnxruntime",
        """\
import json

import numpy
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
images = numpy.random.rand(5, SHAPE).astype("float32")
(logits,) = session.run(["logits"], {"images": images})
about = session.get_modelmeta().custom_metadata_map["bilateral"]
classes = json.loads(about)["classes"]
""",
    ),
}
