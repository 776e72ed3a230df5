"""Somebody's own code as a digest: a file, and whatever of theirs it imports; no torch.

Figures are used again only where the code behind them is the same, and a network often lies in
another file than the function that builds it.
"""

import ast
import hashlib
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from bilateral.errors import UserError
from bilateral.models.external import make_importable


def source_digest(target: str) -> str:
    """A short digest of the file behind a target and of the files it imports.

    Nothing is imported for it, and where the files lie does not matter. What comes with Python, or
    was installed, is left out. UserError where there is no such file.
    """
    source = target.rpartition(":")[0]
    if source.endswith(".py") or "/" in source:
        path = Path(source)
    else:
        make_importable(Path.cwd())
        spec = _spec_without_importing(source)
        path = Path(spec.origin) if spec and spec.origin else Path(source)
    if not path.is_file():
        raise UserError(f"no such file: {path}")
    first, *others = (
        hashlib.sha256(file.read_bytes()).hexdigest() for file in _files(path.resolve())
    )
    if not others:
        return first[:16]
    return hashlib.sha256("".join([first, *sorted(others)]).encode()).hexdigest()[:16]


def _files(first: Path) -> list[Path]:
    """The file and all that it leads to, it first."""
    roots = [first.parent, *_own_places()]
    found = [first]
    for file in found:
        found += [other for other in _imported(file, roots) if other not in found]
    return found


def _own_places() -> list[Path]:
    """Where imports look, but for Python itself and what was installed with it."""
    installed = {Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix)}
    places = [Path(entry or ".").resolve() for entry in sys.path]
    return [
        place
        for place in places
        if place.is_dir()
        and not any(place.is_relative_to(prefix) for prefix in installed)
        and not {"site-packages", "dist-packages"} & set(place.parts)
    ]


def _imported(file: Path, roots: list[Path]) -> Iterator[Path]:
    """The files that a file's import statements name, as far as they lie below these folders."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _modules(alias.name.split("."), roots)
        elif isinstance(node, ast.ImportFrom):
            whole = node.module.split(".") if node.module else []
            places = [file.parents[node.level - 1]] if node.level else roots
            for alias in node.names:
                yield from _modules([*whole, alias.name], places)


def _modules(parts: list[str], roots: list[Path]) -> Iterator[Path]:
    """The packages and the module of a dotted name; its last part may be a name inside of one."""
    if parts[0] == "bilateral" or parts[0] in sys.stdlib_module_names:
        return
    for root in roots:
        whole = [root.joinpath(*parts[:count]) for count in range(1, len(parts) + 1)]
        files = [file for one in whole for file in (one / "__init__.py", one.with_suffix(".py"))]
        found = [file.resolve() for file in files if file.is_file()]
        if found:
            yield from found
            return


def _spec_without_importing(name: str) -> ModuleSpec | None:
    """Where a module lies; `find_spec` would run the packages it is in."""
    spec, places, whole = None, None, ""
    for part in name.split("."):
        whole = f"{whole}.{part}" if whole else part
        spec = PathFinder.find_spec(whole, places)
        if spec is None:
            return None
        places = spec.submodule_search_locations
    return spec
