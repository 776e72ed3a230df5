"""The network's code as one Python file that needs torch and safetensors alone.

It is the package's own source: the modules that build the model, without the imports that lead
from one to another.
"""

import ast
import importlib
import inspect

import bilateral
from bilateral.models import model_entry

_HEAD = '''"""{model}: the network and its weights, by `load()`. Needs torch and safetensors.

From bilateral {version}. Copyright (c) The Bilateral developers, SPDX-License-Identifier: MIT.
"""
'''
_TAIL = '''

WEIGHTS = Path(__file__).with_name("model.safetensors")


def about(weights: str | Path = WEIGHTS) -> dict[str, Any]:
    """What the weights' file says of the model: classes, channels, image size, normalisation."""
    with safe_open(weights, "pt") as file:
        return dict(json.loads(file.metadata()["bilateral"]))


def load(weights: str | Path = WEIGHTS) -> Network:
    """The trained network in eval mode: float32 images in [0, 1], shape (N, C, H, W), to logits."""
    network = {builder}({arguments})
    network.load_state_dict(load_file(weights))
    return network.eval()
'''
_TAIL_IMPORTS = """\
import json
from pathlib import Path
from typing import Any
from safetensors import safe_open
from safetensors.torch import load_file
"""


def standalone_source(model: str, classes: int, channels: int) -> str:
    """`model.py` for a model of the table or any `wrn-D-W`."""
    entry = model_entry(model)
    module, _, builder = entry.builder.partition(":")
    imports: dict[str, set[str]] = {}
    _merge(ast.parse(_TAIL_IMPORTS), imports)
    bodies = _bodies(module, imports, set())
    settings = {**entry.settings, "classes": classes, "channels": channels}
    arguments = ", ".join(f"{name}={value}" for name, value in settings.items())
    tail = _TAIL.replace("{builder}", builder).replace("{arguments}", arguments)
    head = _HEAD.format(model=model, version=bilateral.__version__)
    return f"{head}\n{_import_lines(imports)}\n\n\n" + "\n\n\n".join(bodies) + "\n" + tail


def _bodies(module: str, imports: dict[str, set[str]], seen: set[str]) -> list[str]:
    """The code below a module's imports, preceded by that of the package's modules it imports."""
    if module in seen:
        return []
    seen.add(module)
    text = inspect.getsource(importlib.import_module(module))
    tree = ast.parse(text)
    bodies = [body for name in _merge(tree, imports) for body in _bodies(name, imports, seen)]
    last = max(node.end_lineno or 0 for node in tree.body if _is_import(node))
    return [*bodies, "\n".join(text.splitlines()[last:]).strip()]


def _is_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def _merge(tree: ast.Module, imports: dict[str, set[str]]) -> list[str]:
    """Add a module's imports to the others'; those of this package are returned instead."""
    own = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module.partition(".")[0] == "bilateral":
                own.append(node.module)
            else:
                imports.setdefault(node.module, set()).update(map(ast.unparse, node.names))
        elif isinstance(node, ast.Import):
            imports.setdefault("", set()).update(map(ast.unparse, node.names))
    return own


def _import_lines(imports: dict[str, set[str]]) -> str:
    """The imports: those of Python first, then torch's and safetensors's."""
    lines = [f"import {name}" for name in imports.get("", ())]
    lines += [f"from {name} import {', '.join(sorted(imports[name]))}" for name in imports if name]
    lines.sort(key=lambda line: (line.startswith("from"), line))
    outside = [line for line in lines if line.split()[1].startswith(("torch", "safetensors"))]
    return "\n".join([*(line for line in lines if line not in outside), "", *outside])
