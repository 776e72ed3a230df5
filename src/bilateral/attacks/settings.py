"""Settings of the attacks that are not the plain gradient loop; no torch.

Defaults are those of each attack's own paper; `CW_FAST` and `CW_FINE` are the appendix's two.
"""

from typing import Annotated, Literal

from pydantic import Field

from bilateral.budgets import Fraction
from bilateral.config import GradientAttack, Positive, Settings


class APGD(Settings):
    """Auto-PGD (Croce & Hein 2020): momentum, and a step size that the search itself halves."""

    epsilon: Fraction = Field(8 / 255, description="L-inf budget")
    steps: Positive = Field(100, description="gradient steps from one start")
    restarts: Positive = Field(1, description="random starts, for each target if there are any")
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


class FAB(Settings):
    """FAB-T in L-inf (Croce and Hein 2019, with the targets of Croce and Hein 2020)."""

    epsilon: Fraction = Field(8 / 255, description="L-inf budget inside which a point counts")
    steps: Positive = Field(100, description="projections on to the boundary, for each target")
    targets: Positive = Field(9, description="most likely wrong classes, one after another")
    restarts: Positive = Field(1, description="passes over the targets; the first has no noise")
    largest_bias: Annotated[float, Field(ge=0, le=1)] = Field(
        0.1, description="largest weight of the step from the clean image, the paper's alpha_max"
    )
    extrapolation: Annotated[float, Field(ge=1)] = Field(
        1.05, description="length of a step as a multiple of the projection, the paper's eta"
    )
    retreat: Annotated[float, Field(gt=0, le=1)] = Field(
        0.9, description="how far from the clean image to stay once fooled, the paper's beta"
    )


class CarliniWagner(Settings):
    """CW-L2 (Carlini and Wagner 2017), untargeted."""

    constant: Annotated[float, Field(gt=0)] = Field(
        100.0,
        description="weight of the margin against the squared distance; the first if searched",
    )
    confidence: Annotated[float, Field(ge=0)] = Field(
        0.0, description="by how much a wrong logit must exceed the true one"
    )
    learning_rate: Annotated[float, Field(gt=0)] = Field(0.1, description="Adam's rate")
    steps: Positive = Field(100, description="Adam steps, for each constant")
    binary_search_steps: Positive = Field(1, description="constants tried; 1: the first one alone")


CW_FAST = CarliniWagner()
CW_FINE = CarliniWagner(learning_rate=0.01, steps=1000)


class DeepFool(Settings):
    """DeepFool in L2 (Moosavi-Dezfooli et al. 2016)."""

    steps: Positive = Field(50, description="linearisations")
    overshoot: Annotated[float, Field(ge=0)] = Field(
        0.02, description="share added to the perturbation so that it crosses the boundary"
    )
    candidates: Annotated[int, Field(ge=2)] = Field(
        10, description="classes considered: the true one and the most likely wrong ones"
    )


class SPSA(Settings):
    """SPSA in L-inf (Uesato et al. 2018): the margin's gradient estimated from forward passes."""

    epsilon: Fraction = Field(8 / 255, description="L-inf budget")
    steps: Positive = Field(100, description="Adam steps")
    samples: Annotated[int, Field(ge=2, multiple_of=2)] = Field(
        128, description="images per gradient estimate, in pairs on either side of the iterate"
    )
    probe_size: Fraction = Field(
        0.01, description="how far from the iterate a sample lies, the paper's delta"
    )
    learning_rate: Annotated[float, Field(gt=0)] = Field(0.01, description="Adam's rate")


class OwnAttack(Settings):
    """A user's own attack: `file.py:function`, (model, images, labels, epsilon) -> images."""

    epsilon: Fraction = Field(8 / 255, description="L-inf budget")
    target: str = Field(description="file.py:function or package.module:function")
    digest: str = Field("", description="of its source, so that an edited attack is run again")


AttackSettings = GradientAttack | APGD | Square | FAB | SPSA | CarliniWagner | DeepFool | OwnAttack
