"""Diagnostics: known offenders are found by the right check, and an innocent model holds."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bilateral.cli import main
from bilateral.commands import diagnose as diagnose_command
from bilateral.config import Labels
from bilateral.data.batches import as_floats, as_tensors
from bilateral.data.datasets import load
from bilateral.data.subsets import balanced_subset
from bilateral.errors import UserError
from bilateral.evaluation.checks import CHECKS, read
from bilateral.evaluation.checks_gradients import reliability
from bilateral.evaluation.diagnosis import Diagnosis, Effort, judge
from bilateral.evaluation.diagnostics import diagnose
from bilateral.evaluation.guards import guard
from bilateral.evaluation.isolation import isolated
from bilateral.evaluation.robustness import noise_keys
from bilateral.evaluation.target import trained_model
from bilateral.paper.recipes import recipe_named
from bilateral.runs import RunFolder
from bilateral.training.progress import TrainingProgress
from bilateral.training.trainer import train

CPU = torch.device("cpu")
EPSILON = 40 / 255
FAIR = Effort(
    step_counts=(1, 5, 20),
    restarts=2,
    apgd_steps=10,
    queries=100,
    noise_draws=5,
    surface_images=8,
    binarization_images=4,
)
QUICK = Effort(
    steps=10,
    step_counts=(1, 5),
    restarts=2,
    apgd_steps=5,
    queries=60,
    noise_draws=3,
    surface_images=1,
    binarization_images=3,
)


def trained(run, path):
    folder = RunFolder(path)
    train(run, folder, load("digits", "train"), CPU, TrainingProgress(quiet=True))
    return trained_model(folder, CPU)[1]


@pytest.fixture(scope="module")
def robust(tmp_path_factory):
    """The digits model, adversarially trained by PGD."""
    usual = recipe_named("digits-r-mc-la")
    adversary = usual.adversary.with_fields(target="none", steps=5, step_size=EPSILON / 3)
    run = usual.with_fields(
        epochs=6, check_epochs=0, labels=Labels(rule="one-hot"), adversary=adversary
    )
    return trained(run, tmp_path_factory.mktemp("robust"))


@pytest.fixture(scope="module")
def undefended(tmp_path_factory):
    run = recipe_named("digits-undefended").with_fields(epochs=5, check_epochs=0)
    return trained(run, tmp_path_factory.mktemp("undefended"))


@pytest.fixture(scope="module")
def digits():
    split = load("digits", "test")
    pixels, labels = as_tensors(split, CPU)
    numbers = torch.from_numpy(balanced_subset(split.labels, 100, seed=0))
    return as_floats(pixels[numbers]), labels[numbers]


def few(digits):
    """Half of the images: what offenders do is not subtle."""
    return digits[0][:50], digits[1][:50]


@pytest.fixture(scope="module")
def innocent(robust, undefended, digits):
    return diagnose(robust, *digits, EPSILON, sources=[undefended], effort=FAIR)


class Wrapped(nn.Module):
    """A model with something before it and something after."""

    def __init__(self, model, before=None, after=None):
        super().__init__()
        self.model = model
        self.before, self.after = before or nn.Identity(), after or nn.Identity()

    def forward(self, images):
        return self.after(self.model(self.before(images)))


def quantised(images):
    return (images * 8).round() / 8


def straight_through(images):
    return images + (quantised(images) - images).detach()


def reversed_at_clean(images):
    """The gradient points the wrong way at clean images alone, whose pixels are whole levels."""
    levels = images.detach() * 255
    clean = (levels - levels.round()).abs().flatten(1).amax(1) < 1e-3
    return torch.where(clean.view(-1, 1, 1, 1), 2 * images.detach() - images, images)


class KnowsItsImages(nn.Module):
    """An undefended model at images of whole grey levels, another one everywhere else.

    Attacks see the other one; an attack that keeps to whole levels breaks what they cannot.
    """

    def __init__(self, at, beside, tolerance):
        super().__init__()
        self.at, self.beside, self.tolerance = at, beside, tolerance

    def forward(self, images):
        levels = images.detach() * 255
        whole = (levels - levels.round()).abs().flatten(1).amax(1) < self.tolerance
        return torch.where(whole[:, None], self.at(images), self.beside(images))


@pytest.mark.parametrize("tolerance", [1e-3, 0.2, 0.4])
def test_a_model_that_knows_its_images_is_found(robust, undefended, digits, tolerance):
    model = KnowsItsImages(undefended, robust, tolerance).eval()
    found = diagnose(model, *few(digits), EPSILON, effort=QUICK)
    assert found.reading("isolated-images").value > 0.9
    assert found.verdict == "masked"
    assert any("outputs jump between" in said for said in guard(model, *few(digits), EPSILON))


def dead_class(value):
    return lambda logits: F.pad(logits, (0, 1), value=value)


HARMLESS = {
    "more for every class": lambda logits: logits + 1000,
    "a class that is never meant": dead_class(-1e4),
    "a class at minus infinity": dead_class(-torch.inf),
    "larger": lambda logits: 1e3 * logits,
    "smaller": lambda logits: 1e-3 * logits,
    "a little noise": lambda logits: logits + 1e-3 * torch.randn_like(logits),
}


def knows(model, images):
    return isolated(model, images, noise_keys(torch.arange(len(images))), model(images))


@pytest.mark.parametrize("after", HARMLESS.values(), ids=list(HARMLESS))
@torch.no_grad()
def test_what_changes_no_prediction_hides_no_jump(robust, undefended, digits, after):
    images = digits[0][:100]
    for model in (undefended, robust):
        assert not knows(Wrapped(model, after=Layer(after)).eval(), images).any()
    known = KnowsItsImages(undefended, robust, 1e-3).eval()
    assert knows(Wrapped(known, after=Layer(after)).eval(), images).float().mean() > 0.9


def test_a_rugged_model_is_isolated_where_it_jumps():
    """By hand: an edge at the image counts, a slope and an edge further off do not."""
    images = torch.full((1, 1, 4, 4), 0.5)

    def edge(at):
        return lambda given: torch.stack(
            [100 * given.flatten(1).mean(1), 30.0 * ((given - 0.5).abs().flatten(1).amax(1) > at)],
            1,
        )

    assert knows(edge(0.1 / 255), images).all()
    assert knows(edge(0.4 / 255), images).all()
    assert not knows(edge(0.6 / 255), images).any()


@pytest.mark.parametrize("level", [0.0, 1.0])
def test_a_slope_goes_on_at_black_and_white(level):
    """No neighbour lies outside of [0, 1], and a line is a line there too."""
    images, weights = torch.full((2, 1, 4, 4), level), torch.linspace(1, 3, 32).view(16, 2)
    seen = []

    def linear(given):
        seen.append(given)
        return 100 * given.flatten(1) @ weights

    assert not knows(linear, images).any()
    assert all(given.min() >= 0 and given.max() <= 1 for given in seen)


def test_nan_beside_the_images_is_refused(undefended, digits):
    nowhere = Wrapped(undefended, after=Layer(lambda logits: logits * torch.nan))
    model = KnowsItsImages(undefended, nowhere, 1e-3).eval()
    assert knows(model, digits[0][:50]).all()
    with pytest.raises(UserError, match="NaN an eighth of a grey level away from clean images"):
        guard(model, *few(digits), EPSILON)
    assert any("outputs jump" in said for said in guard(model, *few(digits), EPSILON, force=True))


def test_an_edge_is_called_what_it_is(undefended, digits):
    """A threshold at a grey level that the images have: not every such model means to cheat."""
    binary = Wrapped(undefended, before=Layer(lambda images: (images > 0).float())).eval()
    assert knows(binary, digits[0][:100]).all()
    (said,) = [one for one in guard(binary, *few(digits), EPSILON) if "outputs jump" in one]
    assert "recognises the images or has a discontinuity there" in said


def test_an_input_that_is_rounded_is_not_isolated(undefended, robust, digits):
    """Half of the digits' grey levels lie where it changes: it jumps, each way otherwise."""
    for model in (undefended, robust):
        rounded = Wrapped(model, before=Layer(straight_through)).eval()
        assert knows(rounded, digits[0][:100]).float().mean() < 0.05


def test_one_odd_image_of_few_raises_no_alarm(undefended, robust, digits):
    """An undefended model at the first image alone."""
    images, labels = digits[0][:19], digits[1][:19]

    class KnowsOne(nn.Module):
        def forward(self, given):
            first = (given - images[0]).flatten(1).abs().amax(1) == 0
            return torch.where(first[:, None], undefended(given), robust(given))

    model = KnowsOne().eval()
    assert knows(model, images).sum() == 1
    assert not any("outputs jump" in said for said in guard(model, images, labels, EPSILON))


OFFENDERS = {
    "quantised input": (
        {"before": quantised},
        {"zero-gradients", "gradient-mismatch", "large-budget", "black-box-stronger"},
        "masked",
    ),
    "quantised input, gradient passed straight through": (
        {"before": straight_through},
        {"gradient-mismatch"},
        "suspect",
    ),
    "saturated logits": (
        {"after": lambda logits: 1000 * logits},
        {"saturated-logits", "zero-gradients", "loss-gap", "pgd-apgd-gap"},
        "masked",
    ),
    "temperature of a thousandth": (
        {"after": lambda logits: logits / 1e-3},
        {"saturated-logits", "zero-gradients"},
        "masked",
    ),
    "noise at inference": (
        {"before": lambda images: images + 0.1 * torch.randn_like(images)},
        {"changing-outputs"},
        None,
    ),
    "softmax at the output": (
        {"after": lambda logits: logits.softmax(1)},
        {"softmax-outputs"},
        "suspect",
    ),
    "detached input": (
        {"before": lambda images: images.detach()},
        {"not-differentiable", "black-box-stronger", "binarization"},
        "masked",
    ),
    "numpy inside": (
        {"before": lambda images: torch.from_numpy(images.numpy())},
        {"not-differentiable"},
        "masked",
    ),
    "classes for logits": (
        {"after": lambda logits: F.one_hot(logits.argmax(1), 10).float()},
        {"not-differentiable"},
        "masked",
    ),
    "signs of pixels": (
        {"before": lambda images: (images - 0.5).sign() / 2 + 0.5},
        {"zero-gradients"},
        "masked",
    ),
    "first step reversed": (
        {"before": reversed_at_clean},
        {"one-step-overfitting"},
        "masked",
    ),
}


@pytest.mark.parametrize("offence", OFFENDERS)
def test_offenders_are_found(robust, digits, offence):
    parts, expected, verdict = OFFENDERS[offence]
    wrapped = Wrapped(robust, **{place: Layer(function) for place, function in parts.items()})
    torch.manual_seed(0)
    found = diagnose(wrapped.eval(), *few(digits), EPSILON, effort=QUICK)
    raised = {reading.name for reading in found.readings if reading.raised}
    assert expected <= raised
    assert found.verdict == verdict or (verdict is None and found.verdict != "holds")
    assert len(found.reasons) == len(raised)
    json.dumps(found.model_dump(mode="json"), allow_nan=False)


class Layer(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, inputs):
        return self.function(inputs)


def test_adversarial_training_holds(innocent):
    assert innocent.reasons == []
    assert innocent.verdict == "holds"
    assert 0.5 < innocent.accuracies["apgd"] <= innocent.accuracies["pgd"] < 0.9
    assert [reading.name for reading in innocent.readings] == list(CHECKS)
    assert all(reading.value is not None for reading in innocent.readings)


def test_an_undefended_model_is_near_zero_but_not_masked(undefended, digits):
    found = diagnose(undefended, *few(digits), EPSILON, effort=FAIR)
    assert found.verdict == "holds", found.reasons
    assert found.accuracies["white-box"] < 0.1


def test_transfer_beats_a_masked_model(robust, digits):
    """The model itself as the source: its gradient breaks the copy that hides it."""
    hidden = Wrapped(robust, before=Layer(quantised)).eval()
    found = diagnose(hidden, *few(digits), EPSILON, sources=[robust], effort=QUICK)
    assert found.reading("transfer-stronger").raised
    assert found.reading("transfer-stronger").severity == "masked"


def test_gradient_tables(linear):
    """A linear model: the gradient is (softmax - one-hot) times the weights."""
    images = torch.rand(12, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(12) % 5
    found = diagnose(linear, images, labels, 0.02, effort=QUICK)
    weight = linear.head.weight.detach().double()
    logits = linear(images).detach().double()
    missing = logits.softmax(1) - F.one_hot(labels, 5)
    norms = (missing @ weight).norm(dim=1)
    right = logits.argmax(1) == labels
    tables = {(row.norm, row.scale): row for row in found.gradient_magnitude}
    assert len(tables) == 6
    for (norm, scale), row in tables.items():
        width = {"[0, 1]": 1, "[-1, 1]": 2, "[0, 255]": 255}[scale]
        values = (norms / width) ** (2 if norm == "squared-l2" else 1)
        assert row.all.mean == pytest.approx(float(values.mean()), rel=1e-4)
        assert row.wrong.max == pytest.approx(float(values[~right].max()), rel=1e-4)
        assert row.all.min == pytest.approx(float(values.min()), rel=1e-3)
        assert row.correct.images + row.wrong.images == row.all.images == 12
    assert found.reading("gradient-mismatch").value == pytest.approx(0, abs=1e-3)
    assert found.reading("local-linearity").value == pytest.approx(1, abs=0.05)


def test_curves_surface_and_json(innocent, digits, robust):
    budgets = [point.epsilon for point in innocent.curves.epsilon]
    multiples = [place * EPSILON / 2 for place in range(9)]
    assert budgets == pytest.approx(sorted([*multiples, 0.5, 1.0])) and EPSILON in budgets
    accuracies = [point.accuracy for point in innocent.curves.epsilon]
    assert accuracies == sorted(accuracies, reverse=True) and accuracies[-1] == 0
    assert [point.steps for point in innocent.curves.steps] == [0, 1, 5, 20]
    surface = innocent.loss_surface
    middle = len(surface.offsets) // 2
    with torch.no_grad():
        clean = F.cross_entropy(robust(digits[0][:8]), digits[1][:8])
    assert surface.loss[middle][middle] == pytest.approx(float(clean), rel=1e-4)
    assert surface.loss[-1][middle] > surface.loss[middle][middle] > surface.loss[0][middle]
    assert innocent.curves.epsilon[2].accuracy == innocent.accuracies["pgd"]
    text = json.dumps(innocent.model_dump(mode="json", by_alias=True), allow_nan=False)
    assert Diagnosis.model_validate_json(text) == innocent
    assert innocent.epsilon_text == "40/255"


@pytest.mark.parametrize(
    ("epsilon", "levels"),
    [
        (8 / 255, [0, 4, 8, 12, 16, 20, 24, 28, 32, 127.5, 255]),
        (4 / 255, [0, 4, 8, 12, 16, 20, 24, 28, 32, 127.5, 255]),
        (3 / 255, [0, 3, 4, 8, 12, 16, 20, 24, 28, 32, 127.5, 255]),
        (16 / 255, [0, 8, 16, 24, 32, 40, 48, 56, 64, 127.5, 255]),
        (0.5, [0, 63.75, 127.5, 191.25, 255]),
    ],
)
def test_curves_reach_32_and_hold_the_usual_budget(linear, batch, epsilon, levels):
    found = diagnose(linear, *batch, epsilon, effort=QUICK)
    budgets = [point.epsilon for point in found.curves.epsilon]
    assert [255 * budget for budget in budgets] == pytest.approx(levels)
    assert epsilon in budgets
    usual = Effort().step_counts
    assert usual == (1, 2, 5, 10, 20, 50)  # the paper's figure


def test_histograms_of_correct_and_wrong_images(linear):
    images = torch.rand(60, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(60) % 5
    found = diagnose(linear, images, labels, 0.02, effort=QUICK)
    logits = linear(images).detach().double()
    norms = (logits.softmax(1) - F.one_hot(labels, 5)) @ linear.head.weight.detach().double()
    logarithms = norms.norm(dim=1).log10()
    right = logits.argmax(1) == labels
    drawn = {histogram.name: histogram for histogram in found.histograms}
    name = "log10 of the gradient's l2 norm"
    assert len(found.histograms) == 4 and sum(drawn[name].counts) == 60
    assert sum(drawn["gap of the two largest logits"].counts) == 60
    for kind, which in (("correct", right), ("wrong", ~right)):
        one = drawn[f"{name}, {kind} images"]
        assert one.edges == drawn[name].edges
        assert sum(one.counts) == int(which.sum()) > 0
        middle = len(one.edges) // 2
        below = int((logarithms[which] < one.edges[middle]).sum())
        assert abs(sum(one.counts[:middle]) - below) <= 1  # float32 may cross an edge


def test_reliability_known_values():
    """Confidences 0.5, 0.95, 0.95 and 1; the second is wrong, the first and last lie on edges."""
    confidence = torch.tensor([0.5, 0.95, 0.95, 1.0], dtype=torch.float64)
    logits = torch.stack([confidence, 1 - confidence], 1).log()
    found = reliability("clean", logits, torch.tensor([0, 1, 0, 0]))
    assert found.edges == pytest.approx([place / 10 for place in range(11)])
    assert found.images == [0, 0, 0, 0, 1, 0, 0, 0, 0, 3]
    assert found.confidence[:4] == [None] * 4 == found.accuracy[:4]
    assert found.confidence[4] == pytest.approx(0.5) and found.accuracy[4] == 1
    assert found.confidence[9] == pytest.approx(2.9 / 3)
    assert found.accuracy[9] == pytest.approx(2 / 3)
    assert found.expected_calibration_error == pytest.approx((0.5 + 3 * 0.3) / 4)


def test_reliability_agrees_with_the_accuracies(innocent, robust, digits):
    """Clean and under PGD; adversarial training is unsure of clean images, and less of others."""
    clean, attacked = innocent.reliability
    assert (clean.name, attacked.name) == ("clean", "pgd20")
    for one, key in ((clean, "clean"), (attacked, "pgd")):
        right = sum(n * share for n, share in zip(one.images, one.accuracy, strict=True) if n)
        assert right / 100 == pytest.approx(innocent.accuracies[key]) and sum(one.images) == 100
        assert 0 < one.expected_calibration_error < 1
    with torch.no_grad():
        expected = float(robust(digits[0]).softmax(1).amax(1).sum())
    totals = [
        sum(n * mean for n, mean in zip(one.images, one.confidence, strict=True) if n)
        for one in (clean, attacked)
    ]
    assert totals[0] == pytest.approx(expected, rel=1e-5)
    assert totals[1] < totals[0]


def test_an_older_file_loads_without_reliability(innocent):
    older = json.loads(innocent.model_dump_json(by_alias=True))
    del older["reliability"]
    loaded = Diagnosis.model_validate(older)
    assert loaded.reliability == [] and loaded.readings == innocent.readings


def test_the_model_and_the_result_do_not_change(robust, digits):
    images, labels = digits[0][:20], digits[1][:20]
    robust.train()
    before = {name: value.clone() for name, value in robust.state_dict().items()}
    seen = []
    first = diagnose(
        robust, images, labels, EPSILON, effort=QUICK, progress=lambda *stage: seen.append(stage)
    )
    second = diagnose(robust, images, labels, EPSILON, effort=QUICK, batch_size=7)
    assert robust.training and all(value.grad is None for value in robust.parameters())
    assert all(torch.equal(value, before[name]) for name, value in robust.state_dict().items())
    robust.eval()
    for one, other in zip(first.readings, second.readings, strict=True):
        assert one.raised == other.raised
        assert one.value == pytest.approx(other.value, abs=1e-3)
    assert seen[0] == ("outputs", 0, 7) and seen[-1] == ("done", 7, 7)


@pytest.mark.parametrize(
    ("raised", "alone"),
    [
        (["pgd-apgd-gap"], True),
        (["loss-gap", "pgd-apgd-gap"], True),
        (["pgd-apgd-gap", "gradient-alignment"], False),
        ([], False),
    ],
)
def test_what_discredits_pgd_alone_is_said_of_its_figure(
    raised, alone, tmp_path, monkeypatch, capsys
):
    """APGD's figure, which AutoAttack confirmed, was called doubtful as PGD's was too high."""
    values = {"pgd-apgd-gap": 0.08, "loss-gap": 0.08, "gradient-alignment": 0.1}
    readings = [read(name, values[name] if name in raised else None) for name in values]
    verdict, reasons = judge(readings)
    found = Diagnosis.model_construct(
        verdict=verdict,
        reasons=reasons,
        readings=readings,
        accuracies={"pgd": 0.74, "apgd": 0.615},
        images=200,
        epsilon_text="40/255",
    )
    assert found.of_pgd_alone == alone
    monkeypatch.setattr(diagnose_command, "diagnose_target", lambda _: found)
    diagnose_command.command(["anything"])
    said = capsys.readouterr().out
    assert ("verdict on 74.0 % under pgd at 40/255: suspect" in said) == alone
    assert ("no check discredits the 61.5 % under apgd" in said) == alone


def test_severity_and_verdict():
    usual, wide = read("pgd-apgd-gap", 0.05), read("pgd-apgd-gap", 0.08)
    grave = read("pgd-apgd-gap", 0.14)
    assert not usual.raised and wide.raised and grave.raised
    assert (wide.severity, wide.limit, grave.severity, grave.limit) == (
        "suspect",
        0.06,
        "masked",
        0.13,
    )
    few, many = (read("pgd-apgd-gap", 0.14, images=count) for count in (200, 100_000))
    assert (few.severity, many.severity) == ("suspect", "masked")
    assert read("binarization", 0.4).severity == "masked" and not read("binarization", 1.0).raised
    assert read("label-leaking", 0.01).raised and read("label-leaking", 0.01).severity == "masked"
    assert not read("gradient-alignment", 0.0, applies=False).raised
    assert read("saturated-logits", float("nan")).value is None
    assert judge([usual]) == ("holds", [])
    assert judge([usual, wide])[0] == "suspect"
    verdict, reasons = judge([wide, grave])
    assert verdict == "masked" and reasons[0].startswith("pgd-apgd-gap 0.14 (limit 0.13): ")


def test_every_check_is_documented():
    page = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text()
    for name, check in CHECKS.items():
        assert f"| `{name}` | {check.raised_if} | {check.meaning} |" in page


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda images, labels: (images, labels, 8), "outside"),
        (lambda images, labels: (images, labels[:-1], 0.1), "100 images but 99 labels"),
        (lambda images, labels: (images, labels.double(), 0.1), "labels must be class numbers"),
        (lambda images, labels: (images * 255, labels, 0.1), r"floats in \[0, 1\]"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(robust, digits, change, message):
    with pytest.raises(UserError, match=message):
        diagnose(robust, *change(*digits), effort=QUICK)


def test_outputs_that_are_not_finite_are_refused(robust, digits):
    broken = Wrapped(robust, after=Layer(lambda logits: logits / 0)).eval()
    with pytest.raises(UserError, match="not finite"):
        diagnose(broken, *digits, EPSILON, effort=QUICK)


def test_outputs_that_are_not_finite_near_the_images_are_refused(robust, digits):
    """On the images themselves all is well: digits have sixteen grey levels."""

    class Holed(Wrapped):
        def forward(self, images):
            logits = super().forward(images)
            away = (16 * images - (16 * images).round()).abs().flatten(1).amax(1) > 0.3
            return torch.where(away[:, None], torch.nan, logits)

    holed = Holed(robust).eval()
    assert holed(digits[0]).isfinite().all()
    with pytest.raises(UserError, match="not finite on these images or near them"):
        diagnose(holed, *digits, EPSILON, effort=QUICK)


def test_the_command_writes_what_it_prints(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(
        "import torch\n"
        "def flat():\n"
        "    torch.manual_seed(0)\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)).eval()\n"
    )
    words = ["own.py:flat", "--data", "digits", "--images", "20", "--epsilon", "4/255", "--json"]
    words += ["--sources", "own.py:flat", "--out", "out", "--quiet"]
    for name, value in QUICK.model_dump(exclude={"step_counts"}).items():
        words += [f"--effort.{name.replace('_', '-')}", str(value)]
    assert main(["diagnose", *words, "--effort.step-counts", "1", "5"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert said.err.count("\n") == 1 and "near chance for 10 classes" in said.err
    assert found == json.loads((tmp_path / "out" / "diagnostics.json").read_text())
    assert found["images"] == 20 and found["epsilon_text"] == "4/255"
    curves = json.loads((tmp_path / "out" / "curves.json").read_text())
    assert [point["steps"] for point in curves["steps"]] == [0, 1, 5]
    transfer = next(one for one in found["readings"] if one["name"] == "transfer-stronger")
    assert transfer["value"] is not None  # there was a source
    words.remove("--json")
    assert main(["diagnose", *words, "--effort.step-counts", "1"]) == 0
    table, told = capsys.readouterr().out.split("\n\n")
    head, *rows = table.splitlines()
    assert head.split() == ["check", "reading", "raised", "if", "raised"]
    for row, check in zip(rows, CHECKS.values(), strict=True):
        assert (" below " if check.below else " above ") in row
    assert [row.split()[0] for row in rows] == list(CHECKS)
    few = f", but {found['images']} images are too few to clear it"
    few = few if found["verdict"] == "holds" and found["images"] < 100 else ""
    left = f"{100 * found['accuracies']['apgd']:.1f} % under apgd at {found['epsilon_text']}"
    assert told.splitlines()[0] == f"verdict on {left}: {found['verdict']}{few}"
    assert told.splitlines()[1].strip() == diagnose_command.SAYS[found["verdict"]]
    stored = (tmp_path / "out" / "diagnostics.json").read_text()
    words[words.index("20")] = "10"
    assert main(["diagnose", *words, "--effort.step-counts", "1"]) == 0
    said = capsys.readouterr().err
    assert f"has a diagnosis on 20 images ({found['verdict']}); remove it to store one" in said
    assert (tmp_path / "out" / "diagnostics.json").read_text() == stored, "the larger one stays"
    own = (tmp_path / "own.py").read_text()
    (tmp_path / "own.py").write_text(own.replace("seed(0)", "seed(1)"))
    assert main(["diagnose", *words, "--effort.step-counts", "1"]) == 0
    assert json.loads((tmp_path / "out" / "diagnostics.json").read_text())["images"] == 10
    capsys.readouterr()
    assert main(["diagnose", *words[:3], "--epsilon", "8"]) == 2
    assert "did you mean 8/255?" in capsys.readouterr().err
