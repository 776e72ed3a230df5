"""Each guard with a known offender and with innocents, in the library and by the command."""

import json
import warnings

import pytest
import torch
from torch import nn

import bilateral
from bilateral.attacks.table import attack_members
from bilateral.cli import main
from bilateral.errors import UserError
from bilateral.evaluation.guards import NORMALISATIONS, guard
from bilateral.evaluation.robustness import noise_keys, predictions, robust_flags
from bilateral.models import build_model
from bilateral.paper.recipes import recipe_named
from bilateral.runs import RunFolder
from bilateral.weights import write_weights

SETTINGS = attack_members("square", 0.2)["square"]
KEYS = noise_keys(torch.arange(50))


class Wrapped(nn.Module):
    """A model with something done to its input and output."""

    def __init__(self, model, before=lambda images: images, after=lambda logits: logits):
        super().__init__()
        self.model, self.before, self.after = model, before, after

    def forward(self, images):
        return self.after(self.model(self.before(images)))


@pytest.fixture
def scene(linear):
    """A linear model and 200 images, all of which it gets right."""
    images = torch.rand(200, 3, 6, 6, generator=torch.Generator().manual_seed(3))
    return linear.eval(), images, linear(images).argmax(1)


def softmax(logits):
    return logits.softmax(1)


@pytest.mark.parametrize(
    "after",
    [
        lambda logits: logits,
        lambda logits: logits.log_softmax(1),
        lambda logits: logits - logits.mean(1, keepdim=True) + 1 / 5,
        torch.relu,
    ],
)
def test_an_innocent_model_raises_nothing(scene, after):
    """Log-probabilities, logits that sum to 1 and logits that are never negative: no softmax."""
    model, images, labels = scene
    assert guard(Wrapped(model, after=after).eval(), images, labels, 8 / 255) == []


def test_train_mode_is_told_and_left(scene):
    model, images, labels = scene
    model = nn.Sequential(nn.BatchNorm2d(3), model)
    found = guard(model, images, labels, 8 / 255)
    assert len(found) == 1 and "in train mode: it is put in eval mode" in found[0]
    assert model.training and model[0].num_batches_tracked == 0
    assert guard(model.eval(), images, labels, 8 / 255) == []


def test_softmax_is_refused_unless_forced(scene):
    model, images, labels = scene
    model = Wrapped(model, after=softmax).eval()
    with pytest.raises(UserError, match=r"probabilities .* not logits.*--force"):
        guard(model, images, labels, 8 / 255)
    found = guard(model, images, labels, 8 / 255, force=True)
    assert len(found) == 1 and "probabilities" in found[0]


def test_nan_is_refused(scene):
    model, images, labels = scene
    with pytest.raises(UserError, match="NaN on clean images"):
        guard(Wrapped(model, after=torch.log), images, labels, 8 / 255)


def test_randomised_outputs(scene):
    model, images, labels = scene
    noisy = Wrapped(model, before=lambda images: images + 1e-3 * torch.randn_like(images)).eval()
    found = guard(noisy, images, labels, 8 / 255)
    assert len(found) == 1 and "change from call to call" in found[0]
    assert "expectation over transformation" in found[0]


@pytest.mark.parametrize("name", NORMALISATIONS)
def test_another_input_range_is_named(scene, name):
    model, images, labels = scene
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in NORMALISATIONS[name])
    other = Wrapped(model, before=lambda given: given * std + mean).eval()
    found = guard(other, images, labels, 8 / 255)
    assert f"100.0 % with images {name}" in found[-1]
    assert "expect another input range" in found[-1]


def test_a_grey_image_tries_no_colour_constants(scene):
    model, images, labels = scene
    grey = Wrapped(model, before=lambda given: given.expand(-1, 3, -1, -1) / 255).eval()
    images = images[:, :1]
    labels = model(images.expand(-1, 3, -1, -1)).argmax(1)
    assert "images scaled to 0..255" in guard(grey, images, labels, 8 / 255)[-1]


def test_clean_accuracy_near_chance(scene):
    model, images, _ = scene
    labels = torch.randint(0, 5, (200,), generator=torch.Generator().manual_seed(1))
    found = guard(model, images, labels, 8 / 255)
    assert len(found) == 1 and "near chance for 5 classes" in found[0]
    assert guard(model, images[:40], labels[:40], 8 / 255) == []  # too few to say so


@pytest.mark.parametrize(
    ("right", "images", "told"),
    [(1, 2, True), (2, 2, False), (3, 12, True), (9, 12, False), (10, 49, True), (20, 49, False)],
)
def test_few_images_are_told_from_guessing_by_their_interval(scene, right, images, told):
    """Of five classes: 2 of 2 right have an interval from 34 %, 1 of 2 from 9 %."""
    model, pictures, labels = scene
    labels = labels[:images].clone()
    labels[right:] = (labels[right:] + 1) % 5
    found = guard(model, pictures[:images], labels, 8 / 255, few=True)
    assert bool(found) == told
    if told:
        told_of = f"% on {images} images: too few to distinguish it from guessing among 5 classes"
        assert told_of in found[0]
    assert guard(model, pictures[:images], labels, 8 / 255) == []


def test_images_sorted_by_class_are_sampled_evenly():
    """A model that always says 0 is right on the first fifth of sorted images alone."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    nn.init.zeros_(model[1].weight)
    nn.init.zeros_(model[1].bias)
    images = torch.rand(1000, 3, 2, 2)
    found = guard(model, images, torch.arange(5).repeat_interleave(200), 8 / 255)
    assert len(found) == 2 and "near chance" in found[1], "and its weights are zero"


@pytest.mark.parametrize(("epsilon", "message"), [(8, "did you mean 8/255?"), (0, "outside")])
def test_epsilon_in_the_wrong_unit_is_refused(scene, epsilon, message):
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        bilateral.evaluate(*scene, attacks="fgsm", epsilon=epsilon)


def test_epsilon_divided_twice(scene):
    found = guard(*scene, 8 / 255 / 255)
    assert len(found) == 1 and "divided by 255 twice" in found[0]
    assert guard(*scene, 0.5 / 255) == []


def test_a_budget_that_reaches_every_image(scene):
    """Within a half of plain grey lies every image, so one picture fools for all classes."""
    _, images, _ = scene
    assert float((images - 0.5).abs().max()) <= 0.5
    found = guard(*scene, 0.5)
    assert len(found) == 1 and "plain grey" in found[0]
    assert guard(*scene, 127 / 255) == []


def test_outputs_that_depend_on_the_batch(scene):
    model, images, labels = scene
    centred = Wrapped(model, after=lambda logits: logits - 0.5 * logits.mean(0)).eval()
    found = guard(centred, images, labels, 8 / 255)
    assert any("other images of a batch" in message for message in found)
    norm = nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False), model).eval()
    found = guard(norm, images, labels, 8 / 255)
    assert any("other images of a batch" in message for message in found)
    assert guard(*scene, 8 / 255) == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"after": lambda logits: 1e4 * logits}, True),
        ({"before": lambda images: (images * 16).round() / 16}, True),
        ({"before": lambda images: torch.where(images > 2, 0.0, images)}, False),
    ],
    ids=["saturated", "quantised", "innocent"],
)
def test_gradients_of_zero_are_told(scene, changes, told):
    model, images, labels = scene
    found = guard(Wrapped(model, **changes).eval(), images, labels, 8 / 255)
    assert any(message.startswith("gradients are zero or NaN on") for message in found) == told
    assert told or found == []


def test_a_model_without_gradient_is_attacked_without(scene):
    """Attacks by gradient refuse it in a line, square does not need one."""
    model, images, labels = scene
    hidden = Wrapped(model, before=torch.Tensor.detach).eval()
    for attack in ("pgd5", "apgd-ce", "apgd-t", "fab-t", "deepfool-l2"):
        with (
            pytest.warns(UserWarning, match="no gradient with respect to the images"),
            pytest.raises(UserError, match="no gradient with respect to the images"),
        ):
            bilateral.evaluate(hidden, images[:10], labels[:10], attack)
    with pytest.warns(UserWarning, match="no gradient with respect to the images"):
        found = bilateral.evaluate(hidden, images[:10], labels[:10], "square", epsilon=0.3)
    assert found.worst_case_accuracy < 1


def test_outputs_that_depend_on_being_differentiated(scene):
    model, images, labels = scene
    aware = Wrapped(
        model, after=lambda logits: logits.roll(1, 1) if torch.is_grad_enabled() else logits
    ).eval()
    found = guard(aware, images, labels, 8 / 255)
    assert len(found) == 1 and "differ when gradients are enabled" in found[0]


def test_outputs_that_depend_on_the_place_in_a_batch(scene):
    model, images, labels = scene

    def noisy(logits):
        return logits + torch.randn(logits.shape, generator=torch.Generator().manual_seed(0))

    found = guard(Wrapped(model, after=noisy).eval(), images, labels, 8 / 255)
    assert len(found) == 1 and "other images of a batch" in found[0]


def test_a_model_that_changes_its_input_is_refused_and_judged_rightly(scene):
    """What an attack found must be what is judged: else nothing ever fools."""
    model, images, labels = scene
    rewriting = Wrapped(model, before=lambda given: given.mul_(2).mul_(0.5).clamp_(0.4, 0.6)).eval()
    with pytest.raises(UserError, match="changes its input in place"):
        bilateral.evaluate(rewriting, images, labels, "square")
    before = images.clone()
    rewritten = predictions(rewriting, images)
    assert torch.equal(images, before)
    plain = Wrapped(model, before=lambda given: given.clamp(0.4, 0.6)).eval()
    found, expected = (
        robust_flags(one, images[:50], rewritten[:50], SETTINGS, KEYS) for one in (rewriting, plain)
    )
    assert torch.equal(found.robust, expected.robust) and not bool(found.robust.all())


def test_the_library_warns_and_refuses(scene):
    model, images, labels = scene
    with pytest.warns(UserWarning, match="train mode"):
        bilateral.evaluate(nn.Sequential(nn.Dropout(), model), images, labels, "fgsm")
    probabilities = Wrapped(model, after=softmax).eval()
    with pytest.raises(UserError, match="force=True"):
        bilateral.evaluate(probabilities, images, labels, "fgsm")
    with pytest.warns(UserWarning, match="probabilities"):
        bilateral.evaluate(probabilities, images, labels, "fgsm", force=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bilateral.evaluate(model, images, labels, "fgsm")


OWN = """
import torch
from torch import nn


def plain(classes, channels):
    torch.manual_seed(0)
    return nn.Sequential(nn.Dropout(), nn.Flatten(), nn.Linear(64 * channels, classes))


def probabilities(classes, channels):
    return nn.Sequential(plain(classes, channels), nn.Softmax(1)).eval()
"""


def test_the_command_warns_on_standard_error(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    words = ["--data", "digits", "--attacks", "fgsm", "--images", "20", "--quiet"]
    assert main(["evaluate", "own.py:plain", *words]) == 0
    said = capsys.readouterr()
    assert "bilateral: warning: the model is in train mode" in said.err
    assert "near chance for 10 classes" in said.err
    assert "warning" not in said.out and "worst case" in said.out


def test_the_command_refuses_unless_forced(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    words = ["own.py:probabilities", "--data", "digits", "--attacks", "fgsm", "--images", "20"]
    assert main(["evaluate", *words]) == 2
    said = capsys.readouterr()
    assert "probabilities" in said.err and said.err.count("\n") == 1 and said.out == ""
    assert not (tmp_path / "evaluations").exists()
    assert main(["evaluate", *words, "--force"]) == 0
    assert "bilateral: warning: the model returns probabilities" in capsys.readouterr().err


EFFORT = "apgd-steps 2 queries 2 restarts 1 binarization-images 1 surface-images 1 steps 2"


def test_warnings_lie_beside_the_figures_and_stand_on_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    words = ["own.py:probabilities", "--data", "digits", "--attacks", "fgsm", "--images", "20"]
    assert main(["evaluate", *words, "--force", "--quiet"]) == 0
    path = tmp_path / "evaluations/own-py-probabilities"
    (entry,) = json.loads((path / "evaluation.json").read_text())["entries"]
    assert any("probabilities" in warning for warning in entry["warnings"])
    assert main(["report", str(path), "--quiet"]) == 0
    assert "the model returns probabilities" in (path / "report.html").read_text()
    capsys.readouterr()


def test_diagnose_verify_and_bench_warn_and_go_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    model = ["own.py:probabilities", "--data", "digits"]
    effort = EFFORT.split()
    words = [f"--effort.{each}" if place % 2 == 0 else each for place, each in enumerate(effort)]
    few = ["--images", "20", "--quiet"]
    kept = "evaluations/own-py-probabilities/adversarial/fgsm@40-255.npz"
    keep = ["--attacks", "fgsm", "--force", "--save-adversarial"]
    assert main(["evaluate", *model, *keep, *few]) == 0
    for line in (
        ["diagnose", *model, *few, *words],
        ["verify", kept, "--target", *model],
        ["bench", "evaluate", *model, "--attacks", "pgd2", *few],
    ):
        capsys.readouterr()
        assert main(line) == 0, line
        said = capsys.readouterr().err
        assert "bilateral: warning: the model returns probabilities" in said, line
        assert "near chance for 10 classes" in said, line
    assert main(["verify", kept, "--target", *model, "--quiet"]) == 0
    assert "warning" not in capsys.readouterr().err


def test_a_source_that_does_not_fit_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN + "def maps():\n    return nn.Conv2d(1, 10, 3)\n")
    model = ["own.py:plain", "--data", "digits", "--images", "10", "--quiet"]
    assert main(["diagnose", *model, "--sources", "own.py:maps"]) == 2
    said = capsys.readouterr().err
    assert "own.py:maps: the model returns outputs of shape (1, 10, 6, 6)" in said
    assert said.count("\n") == 1


def test_another_budget_than_the_trained_one_is_told_unless_asked_for(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    recipe = recipe_named("digits-r-mc-la")
    folders = {}
    for name, budget in (("usual", 40), ("smaller", 20)):
        folders[name] = RunFolder(tmp_path / name)
        adversary = recipe.adversary.with_fields(epsilon=budget / 255)
        folders[name].prepare(recipe.with_fields(adversary=adversary), {})
        about = {"classes": list("0123456789"), "channels": 1, "image_size": [8, 8]}
        write_weights(folders[name].weights, build_model("small-cnn", 10, 1), about)
    effort = EFFORT.split()
    words = [f"--effort.{each}" if place % 2 == 0 else each for place, each in enumerate(effort)]
    told = "trained at 20/255, attacked at 40/255 by default: --epsilon chooses another budget"
    for line in (["evaluate", "--attacks", "fgsm"], ["diagnose", *words]):
        for rest, expected in (
            (["smaller"], 1),
            (["smaller", "--epsilon", "40/255"], 0),
            (["usual"], 0),
        ):
            capsys.readouterr()
            assert main([*line, *rest, "--images", "10", "--quiet"]) == 0
            assert capsys.readouterr().err.count(told) == expected, (line, rest)
