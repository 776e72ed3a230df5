"""A run as a typed, validated value, with its JSON; no torch.

Every setting of the method, the attacks and the training is a field here, frozen once made:
a recipe is such a value, `config.json` holds it, and the command line overrides its fields.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import tyro
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from bilateral.budgets import Fraction
from bilateral.complaints import first_complaint
from bilateral.errors import UserError, unknown

Positive = Annotated[int, Field(ge=1, lt=2**31)]
LARGEST_SIDE = 4096
Side = Annotated[int, Field(ge=1, le=LARGEST_SIDE)]
"""Pixels of a side of an image."""
GUARD_IMAGES, MOST_READ = 250, 1000
"""Images in a guard reading; the most in a reading that chooses the weights (`keep`)."""
Target = Literal["none", "most-confusing", "least-likely", "random", "nearest"]


class Settings(BaseModel):
    """A frozen value: unknown fields, NaN and infinity are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def with_fields(self, **changes: Any) -> Self:
        """A copy with some fields changed, validated again (`model_copy` would not)."""
        return type(self).model_validate({**self.model_dump(), **changes})

    def with_paths(self, fields: Mapping[str, Any]) -> Self:
        """A copy with some fields changed, nested ones too: `adversary.epsilon`.

        They are validated together: one may be valid only with another.
        """
        values = self.model_dump()
        for path, value in fields.items():
            *parts, name = path.replace("-", "_").split(".")
            place: Any = values
            for part in parts:
                place = place.get(part) if isinstance(place, dict) else None
            if not isinstance(place, dict) or name not in place:
                raise unknown("field", path, flat(values))
            place[name] = value
        return type(self).model_validate(values)


class GradientAttack(Settings):
    """One signed-gradient loop: FGSM, PGD, MI-FGSM and the training adversary differ in these."""

    epsilon: Fraction = Field(8 / 255, description="L-inf budget, the paper's epsilon_x")
    steps: Positive = Field(1, description="gradient steps")
    step_size: Fraction = Field(8 / 255, description="length of a step")
    random_start: bool = Field(True, description="start at a uniform point of the ball")
    start_width: Annotated[float, Field(gt=0)] = Field(
        1.0, description="width of the random start as a multiple of the budget"
    )
    start_corners: bool = Field(
        False, description="every pixel starts the whole width away, up or down (RAND+FGSM, NuAT)"
    )
    clip_start: bool = Field(False, description="clip the start to [0, 1] before the first step")
    projection: Literal["ball", "range", "none"] = Field(
        "ball", description="where a step may end: in the ball, in [0, 1], or anywhere (N-FGSM)"
    )
    target: Target = Field("none", description="class to move towards, chosen at the clean image")
    loss: Literal["cross-entropy", "margin", "divergence"] = Field(
        "cross-entropy",
        description="the attack's loss; divergence is TRADES's KL to the clean prediction",
    )
    guide: Annotated[float, Field(ge=0)] = Field(
        0.0, description="weight of the squared change of the prediction in the loss (GAT)"
    )
    margin_cap: Annotated[float, Field(gt=0)] | None = Field(
        None, description="stop pushing an image past this margin (the authors' code: 50)"
    )
    momentum: Annotated[float, Field(ge=0)] | None = Field(
        None, description="decay of MI-FGSM's accumulated gradient; none: the plain gradient"
    )
    restarts: Positive = Field(1, description="independent random starts")
    iterate: Literal["any", "last"] = Field(
        "any",
        description="any: an image is broken if any tested iterate fools the model; last: only if "
        "the last one does",
    )

    @model_validator(mode="after")
    def _consistent(self) -> "GradientAttack":
        if self.target == "none" and self.loss == "divergence" and not self.random_start:
            raise ValueError("the divergence is flat at the clean image: it needs random_start")
        if self.target != "none" and self.loss == "divergence":
            raise ValueError("the divergence loss takes no target")
        if self.restarts > 1 and self.iterate == "last":
            raise ValueError("restarts need iterate = any: they attack the images not broken yet")
        if self.projection != "ball" and self.iterate == "any":
            raise ValueError("iterate = any needs projection = ball: images outside do not count")
        return self


class Adversary(GradientAttack):
    """The adversary of a training step: the attack, and how it uses the network."""

    iterate: Literal["any", "last"] = Field("last", description="training uses the last iterate")
    reference: Literal["clean", "start"] = Field(
        "clean",
        description="image at which target and label are computed: the clean one, or the start "
        "(5/6 of the cost)",
    )
    batch_norm: Literal["eval", "train"] = Field(
        "eval", description="batch-norm mode while attacking"
    )
    prior_start: bool = Field(
        False,
        description="start where the last attack on the same image ended, if there was one (PGI)",
    )

    @model_validator(mode="after")
    def _reference_fits(self) -> "Adversary":
        if self.loss == "divergence" and self.reference == "start":
            raise ValueError("the divergence is from the clean image: it needs reference = clean")
        return self


class Labels(Settings):
    """The label of an adversarial training image."""

    rule: Literal["one-hot", "smoothing", "adversarial", "supplementary"] = Field(
        "adversarial", description="the label formula; supplementary is the appendix's"
    )
    ratio: Annotated[float, Field(ge=1)] | None = Field(
        None, description="true class over largest wrong class, the paper's beta; none: classes - 1"
    )
    gamma: Annotated[float, Field(gt=0)] = Field(
        0.01, description="share of the most confusing class, the paper's gamma"
    )
    budget: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.5, description="mass taken from the true class by smoothing, the paper's epsilon_y"
    )
    mix: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="share of the uniform distribution mixed into the label of any rule"
    )
    averaged_share: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description="share of the averaged weights' prediction at the clean image in the label of "
        "any rule; costs one more forward pass",
    )
    top_k: Positive | None = Field(
        None,
        description="how many wrong classes, those of largest loss, get a share (R-MC-LA9); "
        "none: all",
    )


class Data(Settings):
    """The training data."""

    name: Annotated[str, tyro.conf.arg(aliases=["--data"])] = Field(
        "cifar10", description="a data set's name, or folder:PATH"
    )
    images_per_class: Positive | None = Field(
        None, description="train on this many images of each class; none: all"
    )
    held_out: Annotated[int, Field(ge=0)] = Field(
        0, description="training images held out for the guard; 0: it reads training images"
    )
    augment: Literal["none", "crop", "crop-flip", "resized-crop-flip"] = Field(
        "crop-flip",
        description="pad 4 with mid-grey and crop, or crop a random part and resize it (ImageNet); "
        "mirror half of the images",
    )
    cutmix: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0,
        description="share of images in which a box shows another image; labels mix by area",
    )
    vary: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0,
        description="share of images turned, sheared, or with other brightness, contrast or colour",
    )
    fidelity: Literal["ours", "authors"] = Field(
        "ours",
        description="authors: one mirror decision for a whole batch, on every data set",
    )

    @property
    def streamed(self) -> bool | None:
        """Whether a folder's pictures are decoded on access; None decides by their size.

        A resized crop is drawn from the whole picture, so even a small folder is streamed.
        """
        return True if self.augment == "resized-crop-flip" else None


class Optimiser(Settings):
    """SGD with the paper's parameter groups and schedule."""

    batch_size: Positive = Field(128, description="images per step")
    learning_rate: Annotated[float, Field(gt=0)] = Field(0.1, description="first learning rate")
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(0.9, description="momentum")
    weight_decay: Annotated[float, Field(ge=0)] = Field(
        2e-4, description="on convolution and linear weights only"
    )
    turn: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None,
        description="Muon: at the full rate a step turns convolution weights by this share of "
        "their length, which stays constant; none: SGD for all weights",
    )
    schedule: Literal["steps", "triangular", "one-cycle"] = Field(
        "steps",
        description="steps: drop at the milestones; triangular: rise for a fifth of the run, then "
        "fall; one-cycle: rise for three tenths, then fall, along cosines",
    )
    milestones: tuple[float, ...] = Field(
        (0.6, 0.9), description="fractions of the run after which the rate drops"
    )
    drop: Annotated[float, Field(gt=0, lt=1)] = Field(0.1, description="factor of a drop")
    last_share: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="triangular and one-cycle end with this share of the rate"
    )

    @model_validator(mode="after")
    def _ordered(self) -> "Optimiser":
        inside = all(0 < milestone < 1 for milestone in self.milestones)
        if not inside or list(self.milestones) != sorted(self.milestones):
            given = " ".join(f"{milestone:g}" for milestone in self.milestones)
            raise ValueError(
                f"optimiser.milestones {given}: must be rising fractions of the run, each in (0, 1)"
            )
        return self


class Regulariser(Settings):
    """A penalty on the distance from the adversarial prediction to the reference's, held fixed.

    With method = trades it replaces the divergence, and both get gradients: GAT and NuAT.
    """

    kind: Literal["none", "squared", "nuclear"] = Field(
        "none", description="the distance: squared (GAT), or nuclear over a batch (NuAT)"
    )
    weight: Annotated[float, Field(gt=0)] = Field(10.0, description="its weight in the loss")
    of: Literal["probabilities", "logits"] = Field(
        "probabilities", description="what is compared: probabilities (GAT), or logits (NuAT)"
    )
    rising: bool = Field(
        False, description="the weight grows linearly from zero over the run (NuAT)"
    )


class Run(Settings):
    """Everything that decides what a training run computes."""

    recipe: Annotated[str, tyro.conf.Suppress] = Field("custom", description="where it came from")
    data: Data = Data()
    model: str = Field("wrn-28-10", description="a model's name, file.py:function, or timm:NAME")
    image_size: Side | None = Field(
        None, description="for folder:PATH: resize and crop to this; none: as they are"
    )
    weights: str | None = Field(
        None,
        description="a run folder or .safetensors file to start from; without its last layer if "
        "its classes differ",
    )
    weights_digest: Annotated[str | None, tyro.conf.Suppress] = Field(
        None, description="SHA-256 of the file that a run started from"
    )
    method: Literal["undefended", "adversarial", "trades"] = Field(
        "adversarial",
        description="what a step learns from: clean images, attacked ones, or both (TRADES: clean "
        "images, and the divergence between the two predictions)",
    )
    adversary: Adversary = Adversary()
    labels: Labels = Labels()
    trades_weight: Annotated[float, Field(gt=0)] = Field(
        6.0, description="weight of TRADES's divergence, unless a regulariser replaces it"
    )
    regulariser: Regulariser = Regulariser()
    weight_perturbation: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description="AWP: the gradient is taken with each layer's weights moved uphill by this "
        "share of their length",
    )
    weight_perturbation_along: Literal["gradient", "momentum"] = Field(
        "gradient",
        description="AWP moves weights along their gradient, at the cost of one more update, or "
        "further along the last steps, at no cost",
    )
    optimiser: Optimiser = Optimiser()
    epochs: Positive = Field(100, description="passes over the training set")
    averaging: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="decay of the averaged weights (EMA); none: the last weights"
    )
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="auto is bfloat16 on a GPU that has it, and on a CPU that has it unless images "
        "are tiny; else float32",
    )
    check_epochs: Annotated[int, Field(ge=0)] = Field(
        1, description="epochs between the guard's readings of FGSM and PGD-10; 0: no readings"
    )
    keep: Literal["last", "best"] = Field(
        "last",
        description="the weights that a run ends with: the last ones, or those with the best "
        "PGD-10 reading on half of the held-out images",
    )
    guard: Literal["watch", "stop", "shrink-step", "two-step"] = Field(
        "watch",
        description="when one-step training collapses: log it, or roll back and stop, halve the "
        "step, or take two half steps",
    )
    checkpoint_seconds: Annotated[float, Field(ge=0)] = Field(
        60.0, description="write a checkpoint after the first step past this time"
    )
    seed: Annotated[int, Field(ge=0, lt=2**31)] = Field(0, description="decides all randomness")

    @model_validator(mode="after")
    def _consistent(self) -> "Run":
        if self.regulariser.kind != "none" and self.method == "undefended":
            raise ValueError("the regulariser is for adversarial training")
        if self.weight_perturbation and self.method == "undefended":
            raise ValueError("weight_perturbation is for adversarial training")
        if self.weight_perturbation_along == "momentum" and not self.optimiser.momentum:
            raise ValueError("weight_perturbation_along = momentum: optimiser.momentum is 0")
        if self.weight_perturbation_along == "momentum" and self.optimiser.turn:
            raise ValueError("weight_perturbation_along = momentum needs SGD: no optimiser.turn")
        if self.adversary.prior_start and (self.data.streamed or self.data.vary):
            raise ValueError(
                "adversary.prior_start can only follow crops: data.augment must not resize, and "
                "data.vary must be 0"
            )
        if self.data.cutmix:
            self._mixable()
        if self.labels.averaged_share and (self.averaging is None or self.method == "undefended"):
            raise ValueError("labels.averaged_share needs adversarial training with averaging")
        if self.guard != "watch" and not self.check_epochs:
            raise ValueError("guard acts on readings: check_epochs must be 1 or more")
        if self.keep == "best" and self.method == "undefended":
            raise ValueError("keep = best is by accuracy under attack: the method is undefended")
        if self.keep == "best" and (self.data.held_out < 2 or not self.check_epochs):
            raise ValueError(
                "keep = best reads held-out images: data.held_out must be 2 or more, check_epochs "
                "1 or more"
            )
        if self.guard != "watch" and self.method == "undefended":
            raise ValueError("guard has nothing to act on: the method is undefended")
        return self

    @property
    def images_read(self) -> int:
        """The most images of a guard reading.

        keep = best chooses weights by half of the held-out images: the others can still judge them.
        """
        return min(self.data.held_out // 2, MOST_READ) if self.keep == "best" else GUARD_IMAGES

    @property
    def images_judging(self) -> int:
        """The number of held-out images by which the weights were not chosen."""
        return self.data.held_out - (self.images_read if self.keep == "best" else 0)

    def _mixable(self) -> None:
        """Refuse what needs one true class or the same image every epoch: CutMix keeps neither."""
        if self.labels.rule not in ("one-hot", "smoothing"):
            raise ValueError("data.cutmix needs labels.rule = one-hot or smoothing")
        adversary = self.adversary
        if self.method == "undefended":
            return
        if adversary.iterate == "any":
            raise ValueError("data.cutmix needs adversary.iterate = last: no iterate can be tested")
        if adversary.target != "none" or adversary.loss == "margin":
            raise ValueError("data.cutmix needs an untargeted attack whose loss is not the margin")


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """The values of nested settings by their dotted paths."""
    if not isinstance(value, dict):
        return {path: value}
    return {
        key: leaf
        for name, inner in value.items()
        for key, leaf in flat(inner, f"{path}.{name}" if path else name).items()
    }


def config_digest(run: Run) -> str:
    """SHA-256 of what a run computes, for every file that holds a measurement of it.

    It leaves out how often a checkpoint is written, the path of weights whose digest is known, and
    fields at their default: a field that a later version adds does not change the digests of
    earlier runs.
    """
    unheeded = {"checkpoint_seconds"} | ({"weights"} if run.weights_digest else set())
    said = run.model_dump(mode="json", exclude=unheeded, exclude_defaults=True)
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def run_from_json(text: str | bytes, source: str) -> Run:
    """The run that a `config.json` holds."""
    try:
        return _Stored.model_validate_json(text).run
    except ValidationError as error:
        raise UserError(
            f"{source} is not a run's configuration: {first_complaint(error)}"
        ) from None


class _Stored(BaseModel):
    run: Run
