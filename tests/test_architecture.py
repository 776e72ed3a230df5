"""Imports point one way, and what must answer fast does not import torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from bilateral.cli import COMMANDS

SOURCE = Path(__file__).parents[1] / "src" / "bilateral"

# A module may import from its own layer and from lower ones.
LAYERS = [
    ["errors", "complaints", "signals", "budgets"],
    ["config", "machine", "results", "tables", "trials", "randomness", "arguments"],
    ["locks", "storage", "reading", "arrays"],
    ["models", "data", "runtime", "processes", "jobs", "runs", "weights"],
    ["attacks", "labels", "regularisers"],
    ["method"],
    ["training", "evaluation"],
    ["paper"],
    ["report", "export", "sweeps"],
    ["commands"],
    ["cli", "__main__", "__init__"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
# `attacks.table` and `paper.recipes` are values that `list` shows at once.
TORCH_FREE = ["cli", "errors", "complaints", "budgets", "config", "results", "tables", "trials"]
TORCH_FREE += ["arguments", "runs", "signals", "locks", "storage", "reading", "arrays"]
TORCH_FREE += ["attacks.table", "paper.recipes", "paper.claims", "paper.pages", "models"]
TORCH_FREE += ["paper.studies", "paper.judging", "machine"]
TORCH_FREE += ["data.datasets"]
TORCH_FREE += [f"commands.{name}" for name in COMMANDS]


def modules():
    return sorted(SOURCE.rglob("*.py"))


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bilateral"):
            names = [node.module] if node.module != "bilateral" else []
            yield from names or [f"bilateral.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("bilateral."))


def top(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path):
    own = LEVEL[top(path)]
    for name in imports_of(path):
        part = name.split(".")[1]
        if part == "__version__":
            continue
        assert LEVEL[part] <= own, f"{path.name} imports {name} from a higher layer"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_modules_are_short_and_documented(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 420
    assert ast.get_docstring(ast.parse(text)), "a module says what it holds"


@pytest.mark.parametrize("name", TORCH_FREE)
def test_torch_is_not_imported_by(name):
    code = f"import sys, bilateral.{name}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_source_names_no_shared_folder_or_registry():
    for path in modules():
        text = path.read_text()
        for word in ("shared/", "pypi.org", "npmjs", "debian.org"):
            assert word not in text, f"{path} names {word}"
