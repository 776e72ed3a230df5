"""Bilateral adversarial training: train robust image classifiers, and measure how robust they are.

The public names are imported on first use, because torch takes seconds to import.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from bilateral.config import Labels as Labels
    from bilateral.errors import UserError as UserError
    from bilateral.evaluation.robustness import evaluate as evaluate
    from bilateral.labels import soft_cross_entropy as soft_cross_entropy
    from bilateral.labels import soft_labels as soft_labels
    from bilateral.method import BilateralAdversary as BilateralAdversary

_HOMES = {
    "BilateralAdversary": "bilateral.method",
    "Labels": "bilateral.config",
    "UserError": "bilateral.errors",
    "evaluate": "bilateral.evaluation.robustness",
    "soft_cross_entropy": "bilateral.labels",
    "soft_labels": "bilateral.labels",
}

__all__ = [
    "BilateralAdversary",
    "Labels",
    "UserError",
    "__version__",
    "evaluate",
    "soft_cross_entropy",
    "soft_labels",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'bilateral' has no attribute '{name}'")
