"""The schema of `diagnostics.json` and `curves.json`; no torch."""

from typing import Any, Literal

from pydantic import Field

from bilateral.config import Positive, Settings
from bilateral.results import Record

Severity = Literal["suspect", "masked"]
Verdict = Literal["holds", "suspect", "masked"]
FEW = 100
"""On fewer images than this, a diagnosis that raises nothing does not clear a model."""


class Effort(Settings):
    """How hard the checks try."""

    steps: Positive = Field(20, description="PGD steps, of a quarter of the budget each")
    step_counts: tuple[Positive, ...] = Field(
        (1, 2, 5, 10, 20, 50), description="PGD steps of the curve"
    )
    restarts: Positive = Field(5, description="PGD starts compared with one")
    apgd_steps: Positive = Field(50, description="APGD steps, for each of its losses and targets")
    queries: Positive = Field(1000, description="Square's queries")
    noise_draws: Positive = Field(10, description="random corners of the ball tried as an attack")
    surface_images: Positive = Field(32, description="images whose mean loss makes the surface")
    binarization_images: Positive = Field(25, description="images with a planted example")


class Reading(Record):
    """One check: what was measured, the limit, and what it means to be past it.

    `severity` is the weight of the reading if it is raised. Without a value the check could not be
    made, and `details` says why.
    """

    name: str
    value: float | None
    limit: float
    raised: bool
    unsure: bool = Field(False, description="past the limit, but not significantly so")
    severity: Severity
    raised_if: str
    meaning: str
    details: dict[str, Any] = Field(default_factory=dict)


class Spread(Record):
    """The smallest, mean and largest gradient of some images; None if there are no images."""

    images: int
    min: float | None
    mean: float | None
    max: float | None


class GradientMagnitude(Record):
    """A row of the paper's gradient tables: one norm in one pixel scale."""

    norm: Literal["squared-l2", "l2"]
    scale: Literal["[0, 1]", "[-1, 1]", "[0, 255]"]
    all: Spread
    correct: Spread
    wrong: Spread


class Histogram(Record):
    """Counts between rising edges; there is one more edge than counts."""

    name: str
    edges: list[float]
    counts: list[int]


class Reliability(Record):
    """Calibration: images binned by the model's confidence in the class it predicts.

    Bins lie between rising edges and include the upper one; empty bins have no means. The error is
    the mean distance between confidence and accuracy, bins weighted by their numbers of images.
    """

    name: str = Field(description="clean, or the attack whose images these are")
    edges: list[float]
    images: list[int]
    confidence: list[float | None]
    accuracy: list[float | None]
    expected_calibration_error: float


class Surface(Record):
    """Mean cross-entropy over the ball: rows along the gradient's sign, columns a random sign.

    `offsets` are multiples of the budget, for rows and columns alike.
    """

    images: int
    offsets: list[float]
    loss: list[list[float]]


class EpsilonPoint(Record):
    """PGD's accuracy at a budget."""

    epsilon: float
    accuracy: float


class StepsPoint(Record):
    """The accuracy at PGD's last iterate after this many steps."""

    steps: int
    accuracy: float


class Curves(Record):
    """`curves.json`: accuracy against the budget and against the number of steps."""

    epsilon: list[EpsilonPoint]
    steps: list[StepsPoint]


PGD_ALONE = {"loss-gap", "pgd-apgd-gap"}
"""Checks that compare PGD with stronger attacks: if raised, those attacks' figures may stand."""


class Diagnosis(Record):
    """`diagnostics.json`: every check, what the report draws, and the verdict."""

    format: Literal[1] = Field(1, alias="schema")
    verdict: Verdict
    reasons: list[str]
    readings: list[Reading]
    gradient_magnitude: list[GradientMagnitude]
    histograms: list[Histogram]
    loss_surface: Surface
    curves: Curves
    reliability: list[Reliability] = Field(default_factory=list)
    accuracies: dict[str, float]
    images: int
    epsilon: float
    epsilon_text: str
    effort: Effort
    seconds: float
    weights_digest: str
    code_digest: str = ""
    config_digest: str = ""
    data: str = ""
    data_digest: str = ""
    versions: dict[str, str]

    def reading(self, name: str) -> Reading:
        """The reading of a check."""
        return next(reading for reading in self.readings if reading.name == name)

    @property
    def of_pgd_alone(self) -> bool:
        """Whether what was raised discredits PGD's figure, and not those of stronger attacks."""
        raised = {reading.name for reading in self.readings if reading.raised}
        return self.verdict == "suspect" and raised <= PGD_ALONE


def judge(readings: list[Reading]) -> tuple[Verdict, list[str]]:
    """`masked` if a reading of that severity is raised, `suspect` if only others are, with reasons.

    The most severe reasons come first.
    """
    raised = [reading for reading in readings if reading.raised]
    raised.sort(key=lambda reading: reading.severity != "masked")
    reasons = [
        f"{reading.name} {_number(reading.value)} (limit {_number(reading.limit)}): "
        f"{reading.meaning}"
        for reading in raised
    ]
    return (raised[0].severity if raised else "holds"), reasons


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"
