"""The guard against catastrophic overfitting: one-step training that learns to fool its own attack.

The network's accuracy under one step stays or rises while that under PGD falls to nothing (Wong et
al. 2020; the paper's FGSM and LL rows). Both accuracies on some fixed images show it in an epoch.

Late in a long run it creeps in over several, and PGD still leaves much that stronger attacks break.
By then gradients have turned: they differ within the ball, and FGSM misses more of what PGD finds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilateral.attacks import ball
from bilateral.attacks.perform import perform
from bilateral.attacks.table import attack_named
from bilateral.attacks.untouched import untouched
from bilateral.budgets import fraction_text
from bilateral.config import GUARD_IMAGES, Adversary, Run
from bilateral.method import perturb
from bilateral.randomness import derive
from bilateral.results import wilson_interval
from bilateral.runtime import autocast, plain_cudnn

RECOVERIES = 3
"""How often the guard rolls back before it stops for good."""
LEAP = 0.05
"""A rise in accuracy under the training attack that is worth a reading at once."""
TURNED = 0.75
"""The share of a run's best alignment below which its gradients have turned."""
_POINT = 1


@dataclass(frozen=True)
class Reading:
    """Accuracies on the guard's images, and how well gradients within the ball agree."""

    images: int
    clean: float
    fgsm: float
    pgd10: float
    training_attack: float
    alignment: float
    guessing: float = 0.0
    """The accuracy of guessing."""
    whose: str = ""
    """Which weights were read, where that is ambiguous."""

    def collapsed(self, best: int) -> bool:
        """Whether PGD surely leaves less than half of what FGSM leaves, or of its own `best` count.

        Surely: by the 95 % intervals of both shares. Healthy models keep two thirds of FGSM's.
        Accuracy that is not surely above guessing was never learnt, and cannot be lost.
        """
        _, most = wilson_interval(self.robust, self.images)
        before = max(best, round(self.fgsm * self.images))
        least, _ = wilson_interval(before, self.images)
        return least > max(2 * most, self.guessing)

    def turned(self, best: int, excess: int, alignment: float) -> bool:
        """Whether alignment is well below the run's best, and FGSM misses more of what PGD finds.

        Compared with the reading where most images, `best`, withstood PGD-10: fewer do, and surely
        more than its `excess` withstand FGSM alone. Each sign alone is found in healthy runs:
        alignment falls at large budgets, and FGSM leaves more and more while a run still learns.
        """
        least, _ = wilson_interval(self.excess, self.images)
        _, most = wilson_interval(excess, self.images)
        return self.robust < best and self.alignment < TURNED * alignment and least > most

    @property
    def robust(self) -> int:
        """Images that withstand PGD-10."""
        return round(self.pgd10 * self.images)

    @property
    def excess(self) -> int:
        """Images that withstand FGSM beyond those that withstand PGD-10."""
        return max(0, round(self.fgsm * self.images) - self.robust)

    @property
    def check(self) -> dict[str, float]:
        """What every run logs."""
        return {"clean": self.clean, "fgsm": self.fgsm, "pgd10": self.pgd10}

    @property
    def guard(self) -> dict[str, float]:
        """What the guard logs beside it."""
        return {"training_attack": self.training_attack, "alignment": self.alignment}

    def describe(self, epoch: int) -> str:
        """A collapse in one line."""
        left = f"FGSM leaves {100 * self.fgsm:.1f} %, PGD-10 {100 * self.pgd10:.1f} %"
        return f"epoch {epoch} collapsed{self.whose}: {left}, alignment {self.alignment:.2f}"


@dataclass
class Best:
    """The weights of the best reading so far, where a run keeps them; part of its checkpoint.

    Robust accuracy falls again late in training while that on training images still rises (robust
    overfitting, Rice et al. 2020). Of equal readings the later one counts.
    """

    weights: dict[str, Tensor] | None = None
    robust: int = 0
    epoch: int = 0

    @classmethod
    def stored(cls, state: Mapping[str, Any], model: nn.Module) -> "Best":
        """From a checkpoint; refused where the weights are not the model's."""
        weights, robust, epoch = (state.get(name) for name in ("weights", "robust", "epoch"))
        if weights is None:
            return cls()
        own = model.state_dict()
        if not (isinstance(robust, int) and isinstance(epoch, int)) or weights.keys() != own.keys():
            raise ValueError("its best weights are not the model's")
        # Cloned: these tensors are mapped from a file that will be overwritten.
        return cls({name: own[name].clone().copy_(weights[name]) for name in own}, robust, epoch)

    def look(self, reading: Reading, epoch: int, model: nn.Module) -> bool:
        """Take the weights if no earlier reading was better; returns whether they were taken."""
        if reading.robust < self.robust:
            return False
        self.weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        self.robust, self.epoch = reading.robust, epoch
        return True


@dataclass
class Recovery:
    """What the guard has done to a run so far; part of its checkpoint.

    `good` is the state after the last scheduled reading that showed no collapse. Of the final
    model's good readings, `best` is the largest count of images that withstood PGD-10, `excess`
    how many more withstood FGSM in that reading, and `alignment` the highest. `level` is the
    accuracy under the training attack at the last reading, or in the first epoch. `event` goes
    into the next line of the log; `told` is set once the collapse of a watched run was reported.
    """

    good: dict[str, Any] | None = None
    best: int = 0
    excess: int = 0
    alignment: float = 0.0
    level: float | None = None
    count: int = 0
    event: str = ""
    stopped: bool = False
    told: bool = False

    def collapsed(self, reading: Reading) -> bool:
        """Judge a reading by the good ones before it."""
        turned = reading.turned(self.best, self.excess, self.alignment)
        return turned or reading.collapsed(self.best)

    def take(self, reading: Reading, level: float | None) -> None:
        """Remember a good reading, to judge later ones by."""
        if reading.robust >= self.best:
            self.best, self.excess = reading.robust, reading.excess
        self.alignment = max(self.alignment, reading.alignment)
        self.level = level

    def leaps(self, adversarial_accuracy: float | None) -> bool:
        """Whether accuracy under the training attack rose so much that an acting guard reads now.

        With few images some leaps are chance, and cost a reading. Waiting for significance noticed
        a collapse on the digits an epoch later, in the middle of it.
        """
        if self.good is None or self.level is None or adversarial_accuracy is None:
            return False
        return adversarial_accuracy > self.level + LEAP

    def tell(self, reading: Reading, epoch: int) -> str:
        """The news that a run which is only watched has collapsed; empty if already reported."""
        if self.told:
            return ""
        self.told = True
        self.event = f"{reading.describe(epoch)}; guard = watch changes nothing"
        return self.event

    def act(
        self, reading: Reading, epoch: int, back: int, action: str, adversary: Adversary
    ) -> tuple[Adversary, str]:
        """Decide to stop at epoch `back`, or to continue from there with a milder attack.

        Returns the attack, and what happened in one line, which the log's next line holds too.
        """
        self.count += 1
        self.stopped = action == "stop" or self.count > RECOVERIES
        if self.stopped:
            further = "where training ends"
        else:
            adversary = milder(adversary, action)
            further = f"on with {adversary.steps} x {fraction_text(adversary.step_size)}"
        news = f"{reading.describe(epoch)}; back to epoch {back}, {further}"
        self.event = f"{self.event}. {news}" if self.event else news
        return adversary, news


def read(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    keys: Tensor,
    run: Run,
    bfloat16: bool,
    batch_size: int = GUARD_IMAGES,
) -> Reading:
    """Attack the images at the run's own budget: by FGSM, PGD-10 and the training attack.

    In parts no larger than training's own, so that memory suffices.
    """
    places = torch.arange(len(labels), device=labels.device)
    with untouched(model), autocast(images.device, bfloat16), plain_cudnn():
        rows = [
            _read_part(model, images[part], labels[part], keys[part], run)
            for part in torch.split(places, batch_size)
        ]
        with torch.no_grad():
            logits: Tensor = model(images[:1])
    clean, fgsm, pgd10, own, alignment = (
        float(torch.cat(values).float().mean()) for values in zip(*rows, strict=True)
    )
    return Reading(len(labels), clean, fgsm, pgd10, own, alignment, 1 / logits.shape[1])


def _read_part(
    model: nn.Module, images: Tensor, labels: Tensor, keys: Tensor, run: Run
) -> tuple[Tensor, ...]:
    """Per image: right when clean, under FGSM, PGD-10 and the training attack; and alignment."""
    budget = run.adversary.epsilon

    def holds(attacked: Tensor) -> Tensor:
        with torch.no_grad():
            logits: Tensor = model(attacked)
        return logits.argmax(1) == labels

    right = holds(images)
    left = []
    for name in ("fgsm", "pgd10"):
        found = perform(model, images, labels, attack_named(name, budget), keys)
        left.append(right & ~found.fooled & holds(found.images))
    own = left[0]
    if run.method == "adversarial" and run.adversary.steps == 1:
        attacked, _, _ = perturb(model, images, labels, run.adversary, run.labels, keys)
        own = right & holds(attacked)
    return right, *left, own, _alignment(model, images, labels, keys, budget)


def _alignment(
    model: nn.Module, images: Tensor, labels: Tensor, keys: Tensor, epsilon: float
) -> Tensor:
    """The cosine of the gradients at the image and at a random point of its ball.

    GradAlign's measure (Andriushchenko and Flammarion 2020): near one while a step can be trusted.
    """
    elsewhere = ball.random_start(images, epsilon, derive(keys, _POINT), clip=True)
    gradients = []
    for point in (images, elsewhere):
        point = point.detach().requires_grad_()
        loss = F.cross_entropy(model(point).float(), labels, reduction="sum")
        gradients.append(torch.autograd.grad(loss, point)[0].float().flatten(1))
    return F.cosine_similarity(gradients[0], gradients[1], eps=1e-30)


def milder(adversary: Adversary, action: str) -> Adversary:
    """The training attack after a collapse: half the step, or twice as many of half the length."""
    half = adversary.with_fields(step_size=adversary.step_size / 2)
    return half.with_fields(steps=2 * adversary.steps) if action == "two-step" else half
