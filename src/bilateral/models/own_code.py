"""The digest of a user's own code: a file, and those of their files that it imports; no torch.

Figures are reused only while the code behind them is the same, and a network is often defined in
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

    Nothing is imported for it, and it does not depend on where the files are. The standard library
    and installed packages are left out. UserError where there is no such file.
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
    """The file, then all files that it imports, directly or not."""
    roots = [first.parent, *_own_places()]
    found = [first]
    for file in found:
        found += [other for other in _imported(file, roots) if other not in found]
    return found


def _own_places() -> list[Path]:
    """The folders that imports search, without Python's own and installed packages."""
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
    """The files that a file's import statements name, if they are below these folders."""
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
    """The packages and the module of a dotted name; its last part may be a name in a module."""
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
    """The spec of a module; `importlib.util.find_spec` would run its parent packages."""
    spec, places, whole = None, None, ""
    for part in name.split("."):
        whole = f"{whole}.{part}" if whole else part
        spec = PathFinder.find_spec(whole, places)
        if spec is None:
            return None
        places = spec.submodule_search_locations
    return spec
