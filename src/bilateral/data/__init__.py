"""Data sets, their sources, and batches of them; importing this package does not import torch."""

from bilateral.data.datasets import DATASETS, DatasetEntry, Split, entry_named, load, load_folder
from bilateral.data.sources import Finding, cache_folder, check, fetch

__all__ = [
    "DATASETS",
    "DatasetEntry",
    "Finding",
    "Split",
    "cache_folder",
    "check",
    "entry_named",
    "fetch",
    "load",
    "load_folder",
]
