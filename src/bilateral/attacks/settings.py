"""Settings of AutoAttack's searches inside the ball; no torch."""

from typing import Annotated, Literal

from pydantic import Field

from bilateral.config import Fraction, Positive, Settings


class APGD(Settings):
    """Auto-PGD (Croce & Hein 2020): momentum, and a step size that the search itself halves."""

    epsilon: Fraction = Field(8 / 255, description="L-inf budget")
    steps: Positive = Field(100, description="gradient steps from one start")
    restarts: Positive = Field(1, description="random starts, for every target where there are")
    loss: Literal["cross-entropy", "dlr", "dlr-targeted", "margin"] = Field(
        "cross-entropy", description="what the search increases; dlr-targeted takes target classes"
    )
    targets: Positive = Field(
        9, description="target classes of dlr-targeted, the likeliest wrong ones first"
    )


class Square(Settings):
    """Square attack (Andriushchenko et al. 2020): random search by squares, without gradients."""

    epsilon: Fraction = Field(8 / 255, description="L-inf budget")
    queries: Positive = Field(5000, description="forward passes of an image from one start")
    p_init: Annotated[float, Field(gt=0, le=1)] = Field(
        0.8, description="share of the pixels that the first squares change, the paper's p"
    )
    restarts: Positive = Field(1, description="independent searches")
