"""The model as a `torch.export` program, and as an ONNX model made from that.

Both take any number of images, have the normalisation inside and are in eval mode.
"""

import importlib
import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule

from bilateral.errors import UserError

Logits = Callable[[Tensor], Tensor]
"""A loaded model, whatever it was loaded from."""
ONNX_PACKAGES = ("onnx", "onnxruntime", "onnxscript")


def traced(model: nn.Module, shape: tuple[int, ...], name: str) -> ExportedProgram:
    """The model in eval mode as a program of aten operations, on any number of images."""
    try:
        # Two images: a batch of one would be taken for a constant.
        example = (torch.zeros(2, *shape),)
        with _quietly():
            program = torch.export.export(
                model.eval(), example, dynamic_shapes=({0: Dim("batch", min=1)},)
            )
    except Exception as error:  # whatever a user's own model raises
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"torch.export cannot trace {name} ({reason}); --format safetensors needs no tracing"
        ) from None
    for module in program.graph_module.modules():
        if isinstance(module, GraphModule):
            _make_portable(module)
    return program


def _make_portable(module: GraphModule) -> None:
    """Remove the paths of this machine, and assertions that tie it to this device."""
    for node in list(module.graph.nodes):
        node.meta.pop("stack_trace", None)
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            module.graph.erase_node(node)
    module.recompile()


def write_program(path: Path, program: ExportedProgram, about: dict[str, Any]) -> None:
    """A `.pt2` file, with what is known of the model beside the program."""
    torch.export.save(program, path, extra_files={"about.json": json.dumps(about)})


def load_program(path: Path) -> Logits:
    """The program as a callable."""
    with warnings.catch_warnings():
        # torch 2.11 warns of its own way to read weights.
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        module: Logits = torch.export.load(path).module()
    return module


def require_onnx() -> None:
    """Refuse, before any work, where a package is missing."""
    missing = [name for name in ONNX_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"--format onnx needs {', '.join(missing)}: pip install {' '.join(missing)}"
        )


def write_onnx(path: Path, program: ExportedProgram, about: dict[str, Any]) -> None:
    """An ONNX file with the weights inside: `images` to `logits`."""
    model = _onnx_model(program, about["model"])
    graph = model.graph
    for part in (*graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        part.ClearField("metadata_props")  # the exporter's notes on where each came from
    onnx = importlib.import_module("onnx")
    onnx.helper.set_model_props(model, {"bilateral": json.dumps(about)})
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString(deterministic=True))


def _onnx_model(program: ExportedProgram, name: str) -> Any:
    try:
        with _quietly():
            exported = torch.onnx.export(
                program,
                dynamo=True,
                verbose=False,
                input_names=["images"],
                output_names=["logits"],
                dynamic_shapes=({0: Dim("batch", min=1)},),
            )
            assert exported is not None  # only the older exporter returns None
            return exported.model_proto
    except Exception as error:  # an operation without an ONNX equivalent
        reason = str(error.__cause__ or error).splitlines()[0]
        raise UserError(f"torch.onnx cannot export {name} ({reason}); try --format torch") from None


def load_onnx(path: Path) -> Logits:
    """The ONNX model as a callable, run by onnxruntime on the CPU."""
    session = importlib.import_module("onnxruntime").InferenceSession(
        str(path), providers=["CPUExecutionProvider"]
    )

    def logits(images: Tensor) -> Tensor:
        (found,) = session.run(["logits"], {"images": images.numpy()})
        return torch.from_numpy(found)

    return logits


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence what torch's exporters print, log and warn of; errors are still raised."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        logging.disable(before)
