"""The documents and results of the repository, for the tests that hold one against the other."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "bilateral"
README = ROOT / "README.md"
EVALUATION = ROOT / "docs" / "evaluation.md"
TRAINING = ROOT / "docs" / "training.md"
REPRODUCE = ROOT / "docs" / "reproduce.md"
WHAT_HOLDS = ROOT / "docs" / "what-holds.md"
STUDIES = ROOT / "docs" / "studies.md"
RESULTS = ROOT / "results"
GENERATED = [README, EVALUATION, TRAINING, REPRODUCE, WHAT_HOLDS, STUDIES]
DOCUMENTS = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PROSE = [path for path in DOCUMENTS if path.name != "log.md"]  # the log is the record itself
BENCHES = sorted((RESULTS / "bench").glob("evaluate-*.json"))
TRAINING_BENCHES = sorted((RESULTS / "bench").glob("train-*.json"))
CIFAR10_STUDIES = ("strong", "fast", "lasting", "longest", "prior", "turned", "minute", "overfit")
"""Those that `cifar10-fast` and `cifar10-strong` were chosen by, or kept by."""
