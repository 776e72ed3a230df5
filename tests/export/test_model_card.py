"""The card says what was measured of these weights, what was not, and shows any name as text."""

import json
import re

import numpy as np
import pytest
from export_runs import export, make_run
from markdown_it import MarkdownIt
from PIL import Image, ImageOps

from bilateral.config import Data, Labels, Run, run_from_json
from bilateral.data.pictures import read_picture
from bilateral.evaluation.diagnosis import Diagnosis
from bilateral.export.evidence import Evidence, read_evidence
from bilateral.export.limits import limits
from bilateral.export.markdown import block, escaped, table
from bilateral.export.model_card import Subject, model_card
from bilateral.paper.recipes import recipe_named
from bilateral.results import AttackSummary, Evaluation, summarise, wilson_interval
from bilateral.runs import write_json

HOSTILE = [
    "<script>alert(1)</script>",
    "a|b",
    "`code`",
    "**bold** _it_ ~~no~~",
    "[link](https://example.org)",
    "![image](x.png)",
    "https://example.org www.example.org me@example.org",
    "&lt;b&gt; &amp;",
    "back\\slash \\| $x$",
    "# heading",
    "- item",
    "1. item",
    "> quote",
    "```",
    "🐈‍⬛ חתול قطة",
]


def rendered(text: str) -> str:
    """The HTML of Markdown with tables, strikethrough and bare links, as GitHub has them."""
    reader = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    return reader.render(text)


def tokens(text: str):
    reader = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    for token in reader.parse(text):
        yield token
        yield from token.children or ()


def entry(*attacks: str, digest: str = "w" * 64, **fields) -> Evaluation:
    """Ten images, eight of them right; each attack leaves one less than the one before."""
    summaries = {}
    for number, name in enumerate(attacks, start=1):
        robust = [place < 8 - number for place in range(10)]
        summaries[name] = AttackSummary(
            accuracy=sum(robust) / 10,
            interval=wilson_interval(sum(robust), 10),
            images=10,
            seconds=1.0,
            forwards=1,
            backwards=1,
            robust=robust,
        )
    known = {
        "epsilon": 8 / 255,
        "epsilon_text": "8/255",
        "data": "digits",
        "data_digest": "d",
        "search": "float32",
        "classes": ["a", "b"],
        "labels": [0, 1] * 5,
        "predictions": [place % 2 if place < 8 else 1 - place % 2 for place in range(10)],
        "attacks": summaries,
        "weights_digest": digest,
        "versions": {},
    }
    return summarise(**{**known, **fields})


def diagnosis(verdict: str, reasons: list[str], digest: str = "w" * 64) -> Diagnosis:
    return Diagnosis.model_validate(
        {
            "schema": 1,
            "verdict": verdict,
            "reasons": reasons,
            "readings": [],
            "gradient_magnitude": [],
            "histograms": [],
            "loss_surface": {"images": 0, "offsets": [], "loss": []},
            "curves": {"epsilon": [], "steps": []},
            "accuracies": {},
            "images": 200,
            "epsilon": 8 / 255,
            "epsilon_text": "8/255",
            "effort": {},
            "seconds": 1.0,
            "weights_digest": digest,
            "versions": {},
        }
    )


def subject(**about) -> Subject:
    known = {"classes": ["a", "b"], "channels": 3, "image_size": [4, 6], "model": "small-cnn"}
    return Subject({**known, **about}, parameters=1234567, weights_digest="w" * 64)


def card_of(evidence: Evidence, **about) -> str:
    return model_card(subject(**about), evidence, [])


def section(card: str, title: str) -> str:
    return card.split(f"\n## {title}\n")[1].split("\n## ")[0].strip()


@pytest.mark.parametrize("name", HOSTILE)
def test_escaped_text_renders_as_itself(name):
    for text in (f"x {escaped(name)} y", f"- {escaped(name)}", table(["h"], [[name]])):
        found = list(tokens(text))
        kinds = {token.type for token in found}
        assert not kinds & {"html_inline", "html_block", "link_open", "image", "code_inline"}
        assert not kinds & {"strong_open", "em_open", "s_open", "fence", "blockquote_open"}
        assert not kinds & {"ordered_list_open", "heading_open"}
        assert [token.type for token in found].count("list_item_open") == text.startswith("-")
        # Escapes are tokens of their own: they join to the name as it was.
        shown = "".join(token.content for token in found if token.type in ("text", "text_special"))
        assert name in shown


def test_addresses_are_not_made_links_of():
    """GitHub makes links of bare addresses, which the reader used here does not."""
    assert escaped("https://a.b www.c d@e folder:x") == "https\\://a.b www\\.c d\\@e folder:x"


def test_what_cannot_be_shown_is_written_as_its_code():
    assert escaped("a\nb\r\n\tc") == "a b c"
    assert escaped("a\u202eb\x00\x1b[0m\ud800") == "aU+202EbU+0000U+001B\\[0mU+D800"
    escaped("\ud800").encode()
    assert escaped("zero\u200dwidth") == "zero\u200dwidth"  # joins letters and emoji


def test_a_cell_with_a_pipe_stays_one_cell():
    text = table(["one", "two"], [["a|b", "c\nd"], ["\\|", ""]])
    cells = re.findall(r"<td>(.*?)</td>", rendered(text))
    assert cells == ["a|b", "c d", "\\|", ""]


def test_a_block_is_closed_by_its_own_fence_alone():
    text = block("a\n```\nb\n````\n", "json")
    (token,) = tokens(text)
    assert (token.type, token.content, token.info) == ("fence", "a\n```\nb\n````\n", "json")


def test_hostile_names_everywhere_are_text(tmp_path):
    """Classes, recipe, data set, attack, reasons, versions."""
    run = Run(recipe="<b>|r", model="small-cnn", data=Data(name="folder:/tmp/<i>`x`|y"))
    evidence = Evidence(
        run=run,
        versions={"device": "<img src=x onerror=alert(1)>|"},
        evaluations=(entry("own|`x`.py:<b>f", data="folder:<u>|"),),
        diagnosis=diagnosis("suspect", ["- <script>reason</script> | `x`"]),
        remarks=("**remark** <b>",),
    )
    card = card_of(evidence, classes=HOSTILE)
    assert {token.type for token in tokens(card)}.isdisjoint(
        {"html_inline", "html_block", "link_open", "image", "em_open", "blockquote_open"}
    )
    html = rendered(card)
    assert html.count("<h1>") == 1 and html.count("<h2>") == 9
    assert "<strong>suspect</strong>" in html and html.count("<strong>") == 1
    for name in ("&lt;script&gt;alert(1)&lt;/script&gt;", "a|b", "`code`", "🐈‍⬛ חתול قطة"):
        assert name in html
    assert "<td>own|`x`.py:&lt;b&gt;f</td>" in html
    assert len(re.findall(r"<tr>", html.split("Measured robustness")[1])) == 4
    # The configuration in the card is the run's own.
    (stored,) = re.findall(r"```json\n(.*?)\n```", card, re.S)
    assert run_from_json(stored, "the card") == run


def test_many_classes_are_cut():
    card = card_of(Evidence(Run(model="small-cnn")), classes=[f"c{n}" for n in range(1000)])
    assert "c99 and 900 more" in card and "c100" not in card


def test_the_table_has_every_figure_with_its_interval():
    card = card_of(Evidence(Run(model="small-cnn"), evaluations=(entry("fgsm", "pgd20"),)))
    rows = re.findall(r"^\| digits \|.*$", section(card, "Measured robustness"), re.M)
    assert rows == [
        "| digits | clean |  | 10 | 80.0 | 49.0 to 94.3 |",
        "| digits | fgsm | 8/255 L-inf | 10 | 70.0 | 39.7 to 89.2 |",
        "| digits | pgd20 | 8/255 L-inf | 10 | 60.0 | 31.3 to 83.2 |",
        "| digits | worst case | 8/255 L-inf | 10 | 60.0 | 31.3 to 83.2 |",
    ]


def test_attacks_that_seek_the_smallest_change_are_told_by_radius():
    measured = entry("cw-l2")
    measured.attacks["cw-l2"].accuracy_at_radius = {"0.5": 0.7, "1": 0.2}
    evidence = Evidence(Run(model="small-cnn"), evaluations=(measured,))
    rows = re.findall(r"^\| digits \| cw-l2.*$", card_of(evidence), re.M)
    assert rows[1:] == [
        "| digits | cw-l2 | 0.5 L2 | 10 | 70.0 | 39.7 to 89.2 |",
        "| digits | cw-l2 | 1 L2 | 10 | 20.0 | 5.7 to 51.0 |",
    ]
    (threat,) = [line for line in limits(evidence) if line.startswith("Threat model measured")]
    assert "8/255 (L-inf)" in threat and "0.5 (L2)" in threat and "1 (L2)" in threat


def test_without_autoattack_the_figures_are_upper_bounds_by_weaker_attacks():
    weak = "\n".join(limits(Evidence(Run(), evaluations=(entry("pgd20"),))))
    assert "AutoAttack was not run at 8/255 on 10 images of digits" in weak
    assert "upper bounds by weaker attacks" in weak
    strong = "\n".join(limits(Evidence(Run(), evaluations=(entry("pgd20", "autoattack"),))))
    assert "AutoAttack was run at 8/255" in strong and "weaker attacks" not in strong
    both = (entry("autoattack"), entry("pgd20", epsilon_text="4/255"))
    mixed = "\n".join(limits(Evidence(Run(), evaluations=both)))
    assert "was run at 8/255" in mixed and "was not run at 4/255" in mixed
    clean = "\n".join(limits(Evidence(Run(), evaluations=(entry(),))))
    assert "No attack was run" in clean and "clean images only" in clean
    nothing = "\n".join(limits(Evidence(Run())))
    assert "Nothing is claimed" in nothing and "Threat model" not in nothing


def test_that_autoattack_is_missing_is_said_once():
    few = entry("pgd20").model_copy(update={"images": 5})
    evaluations = (entry("pgd20"), few, entry("pgd20", epsilon_text="4/255"), entry())
    said = [line for line in limits(Evidence(Run(), evaluations=evaluations)) if "half" in line]
    assert said == [
        "AutoAttack was not run at 8/255 on 10 images of digits, nor at 8/255 on 5 images of "
        "digits, nor at 4/255 on 10 images of digits: the figures are upper bounds by weaker "
        "attacks, and some models that looked robust under them have lost half of that accuracy "
        "under AutoAttack."
    ]


def test_the_verdict_comes_with_its_reasons():
    run = Run(model="small-cnn")
    reasons = ["gradient-alignment 0.1 (limit 0.5): steps lead nowhere", "second <b>"]
    evidence = Evidence(run, diagnosis=diagnosis("masked", reasons))
    text = section(card_of(evidence), "Verdict")
    assert text.startswith("**masked**") and "8/255 on 200 images" in text
    assert "- gradient-alignment 0.1 (limit 0.5): steps lead nowhere" in text
    assert "- second \\<b\\>" in text
    assert any("The verdict is masked" in line for line in limits(evidence))
    held = Evidence(run, diagnosis=diagnosis("holds", []))
    assert section(card_of(held), "Verdict").startswith("**holds**")
    assert not any("The verdict is" in line for line in limits(held))


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (Labels(rule="one-hot"), "one-hot"),
        (Labels(rule="one-hot", mix=0.2), "one-hot, 0.2 of it uniform"),
        (Labels(rule="smoothing", budget=0.25), "smoothing, budget 0.25"),
        (Labels(ratio=11, top_k=9), "adversarial, ratio 11, among 9 wrong classes"),
        (Labels(ratio=9), "adversarial, ratio 9"),
        (Labels(rule="supplementary"), "supplementary, ratio classes - 1"),
    ],
)
def test_labels_are_told_by_what_their_rule_heeds(rule, said):
    card = card_of(Evidence(Run(model="small-cnn", labels=rule)))
    assert f"| labels | {said} |" in card


@pytest.mark.parametrize(
    ("recipe", "labels", "pull"),
    [
        ("cifar10-undefended", "one-hot", ""),
        ("cifar10-r-mc-la", "adversarial, ratio 9", ""),
        ("cifar10-trades", "one-hot", "divergence, weight 6"),
        (
            "cifar10-strong",
            "one-hot, 0.45 of it uniform",
            "squared, of logits, weight 2, rising from zero over the run",
        ),
    ],
)
def test_what_the_loss_is_made_of_is_told(recipe, labels, pull):
    text = section(card_of(Evidence(recipe_named(recipe))), "Recipe")
    assert f"| labels | {labels} |" in text
    row = "| pull of the adversarial and the clean prediction |"
    assert f"{row} {pull} |" in text if pull else row not in text


def test_a_share_of_the_averaged_weights_prediction_is_told_of():
    run = Run(model="small-cnn", labels=Labels(ratio=9, averaged_share=0.4), averaging=0.99)
    said = "adversarial, ratio 9, 0.4 of it as the averaged weights predict"
    assert f"| labels | {said} |" in card_of(Evidence(run))


def test_mixed_images_are_part_of_the_augmentation():
    data = Data(name="digits", augment="crop", cutmix=0.5)
    run = Run(model="small-cnn", data=data, labels=Labels(rule="one-hot"))
    assert "- Augmentation: crop, CutMix 0.5\n" in card_of(Evidence(run))


def test_how_a_picture_becomes_an_input_is_said():
    sized = Run(data=Data(name="folder:mine"), image_size=8)
    for run, said in ((sized, True), (Run(data=Data(name="digits")), False)):
        assert ("`ImageOps.fit`" in section(card_of(Evidence(run)), "Intended use")) == said


@pytest.mark.parametrize("size", [None, 8])
def test_a_picture_prepared_as_the_card_says_is_what_was_evaluated(tmp_path, size):
    noise = np.random.default_rng(0).integers(0, 256, (8, 8, 4), dtype=np.uint8)
    picture, turned = Image.fromarray(noise), Image.Exif()
    turned[0x0112] = 6
    picture.save(tmp_path / "0.png", exif=turned)
    run = Run(data=Data(name="folder:mine"), image_size=size)
    said = section(card_of(Evidence(run), image_size=[8, 8]), "Intended use")
    steps = ("`ImageOps.exif_transpose`", "lay it on white", "convert it to RGB", "divide by 255")
    assert all(step in said for step in steps)
    upright = ImageOps.exif_transpose(Image.open(tmp_path / "0.png"))
    prepared = Image.alpha_composite(Image.new("RGBA", (8, 8), "white"), upright).convert("RGB")
    np.testing.assert_array_equal(read_picture(tmp_path / "0.png", size), np.asarray(prepared))


def test_what_an_evaluation_warned_of_is_among_the_limits():
    """A page shows it: a card without it would claim figures that were doubted when made."""
    doubt = "pgd20 broke more of these images in earlier evaluations: the worst case is 27.0 %"
    doubted = entry("fgsm").model_copy(update={"warnings": [doubt]})
    said = limits(Evidence(Run(), evaluations=(doubted, entry("pgd20"))))
    assert [line for line in said if "warned" in line] == [
        f"The evaluation at 8/255 on 10 images of digits warned: {doubt}."
    ]


def test_all_training_images_are_not_all_of_a_folder():
    """A tenth of one without val/ is for test."""
    said = card_of(Evidence(Run(data=Data(name="folder:mine"))))
    assert "- Training images: all of the training set\n" in said


def test_weights_that_a_run_began_with_are_named():
    run = Run(
        data=Data(name="digits"), weights="/home/me/runs/cifar10-fast/seed0/model.safetensors"
    )
    assert "Training began with" not in card_of(Evidence(run.with_fields(weights=None)))
    shown = escaped("cifar10-fast/seed0/model.safetensors")
    assert f"- Training began with other weights, {shown}, and so used their data" in card_of(
        Evidence(run)
    )


def test_the_recipe_says_how_it_was_changed():
    run = recipe_named("digits-r-mc-la").with_fields(epochs=7)
    text = section(card_of(Evidence(run)), "Recipe")
    assert "epochs: 30 -\\> 7" in text and "40/255" in text
    undefended = recipe_named("digits-undefended")
    text = section(card_of(Evidence(undefended)), "Recipe")
    assert "Differs" not in text and "training budget" not in text
    assert any("clean images only" in line for line in limits(Evidence(undefended)))


def test_a_trained_runs_card(trained, exported):
    card = (exported / "MODEL_CARD.md").read_text()
    last = json.loads(trained.log.read_text().splitlines()[-1])
    (measured,) = json.loads(trained.evaluation.read_text())["entries"]
    training = section(card, "Training")
    assert f"Loss in the last of them: {last['loss']:.4f}" in training
    assert "Device: cpu" in training and "Epochs behind these weights: 1" in training
    for name in ("fgsm", "pgd5"):
        accuracy = 100 * measured["attacks"][name]["accuracy"]
        assert f"| digits | {name} | 40/255 L-inf | 20 | {accuracy:.1f} |" in card
    assert "bilateral diagnose was not run" in section(card, "Limits")
    assert "94,186" in section(card, "Architecture")
    assert "evaluate was not run" not in card


def test_figures_of_other_weights_are_not_shown(run, capsys):
    digest = "0" * 64
    write_json(
        run.evaluation,
        {"schema": 1, "entries": [entry("pgd20", digest=digest).model_dump(mode="json")]},
    )
    assert export(run.path, "--quiet") == 0
    card = (run.path / "export" / "MODEL_CARD.md").read_text()
    assert (
        section(card, "Measured robustness")
        == "Not measured: there are no figures for these weights."
    )
    assert "the evaluation at 8/255 on 10 images of digits is of other weights" in card
    assert "| digits | pgd20" not in card and "Nothing is claimed" in card


def test_figures_of_other_code_are_not_shown(run):
    digest = "w" * 64
    both = [entry("pgd20", code_digest="new"), entry("fgsm", code_digest="old", data="other")]
    write_json(
        run.evaluation, {"schema": 1, "entries": [one.model_dump(mode="json") for one in both]}
    )
    found = read_evidence(run, digest, "new")
    assert [list(one.attacks) for one in found.evaluations] == [["pgd20"]]
    assert any("other code of the model" in remark for remark in found.remarks)


def test_the_verdict_on_other_code_is_not_shown(run):
    found = diagnosis("holds", [], digest="w" * 64).model_copy(update={"code_digest": "old"})
    write_json(run.diagnostics, found.model_dump(mode="json", by_alias=True))
    assert read_evidence(run, "w" * 64, "old").diagnosis == found
    evidence = read_evidence(run, "w" * 64, "new")
    assert evidence.diagnosis is None
    assert any("diagnostics.json is of other code" in remark for remark in evidence.remarks)


def test_the_verdict_on_other_weights_is_not_shown(run):
    found = diagnosis("holds", [], digest="0" * 64)
    write_json(run.diagnostics, found.model_dump(mode="json", by_alias=True))
    assert read_evidence(run, "0" * 64).diagnosis == found
    evidence = read_evidence(run, "w" * 64)
    assert evidence.diagnosis is None
    card = card_of(evidence)
    assert "diagnostics.json is of other weights" in section(card, "Limits")
    assert "holds" not in section(card, "Verdict")


def test_missing_and_damaged_files_are_told_of(run):
    found = read_evidence(run, "w" * 64)
    assert found.evaluations == () and found.diagnosis is None and found.last_epoch == {}
    assert [remark.split(":")[0] for remark in found.remarks] == [
        "bilateral evaluate was not run",
        "bilateral diagnose was not run",
    ]
    for damage in ("{", '{"schema": 9, "entries": []}', '{"entries": [{}]}'):
        run.evaluation.write_text(damage)
        run.diagnostics.write_text(damage)
        run.log.write_text(damage)
        found = read_evidence(run, "w" * 64)
        assert found.evaluations == () and found.diagnosis is None
        assert "evaluation.json cannot be read" in found.remarks[0]
        assert "diagnostics.json cannot be read" in found.remarks[1]
    card = card_of(found)
    assert "The log of the epochs is missing or cannot be read" in card_of(Evidence(Run()))
    assert "evaluation.json cannot be read" in card


def test_hostile_class_names_pass_through_the_whole_export(tmp_path, capsys):
    names = (*HOSTILE, "lone \ud800 surrogate", "turn \u202e around")
    run = make_run(tmp_path / "run", classes=names)
    assert export(run.path, "--quiet", "--json") == 0
    assert json.loads(capsys.readouterr().out)["largest_difference"] == 0
    out = run.path / "export"
    from bilateral.weights import read_about

    assert tuple(read_about(out / "model.safetensors")["classes"]) == names
    card = (out / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert "lone U+D800 surrogate" in card and "turn U+202E around" in card
    assert all(name not in (out / "model.py").read_text() for name in HOSTILE[:6])


def robust_run(*evaluations: Evaluation, **fields) -> Evidence:
    return Evidence(run=Run(data=Data(name="digits")), evaluations=evaluations, **fields)


def test_the_last_point_alone_is_not_called_any_point():
    """`-last` is the paper's protocol, and weaker: the card must not claim more for it."""
    said = "Of an attack whose name ends in `-last` only the last point counts"
    assert said in section(card_of(robust_run(entry("pgd20-last"))), "Measured robustness")
    assert said not in card_of(robust_run(entry("pgd20")))


def test_autoattack_comes_first_and_weaker_figures_point_to_it():
    evidence = robust_run(entry("pgd20-last"), entry("autoattack", "pgd20"))
    card = card_of(evidence)
    rows = [
        line for line in section(card, "Measured robustness").splitlines() if "| digits" in line
    ]
    assert "| autoattack |" in rows[1] and "| pgd20-last |" in rows[-2]
    lines = limits(evidence)
    assert lines[0] == (
        "The figures at 8/255 on 10 images of digits are upper bounds by weaker attacks: "
        "AutoAttack left 70.0 % of 10 images."
    )
    assert lines[1].startswith("AutoAttack was run at 8/255")
    other = robust_run(entry("pgd20"), entry("autoattack", epsilon_text="4/255"))
    assert limits(other)[0].startswith("AutoAttack was not run at 8/255")


def test_the_diagnosis_tells_its_apgd_and_its_doubts():
    found = diagnosis("holds", []).model_copy(update={"accuracies": {"apgd": 0.62}, "images": 200})
    said = section(card_of(robust_run(entry("pgd20"), diagnosis=found)), "Verdict")
    assert "APGD, which the diagnosis runs, left 62.0 % of these images" in said
    assert "(95 % interval 55.1 to 68.4)" in said and "too few" not in said
    few = found.model_copy(update={"images": 50})
    said = section(card_of(robust_run(entry("pgd20"), diagnosis=few)), "Verdict")
    assert "- 50 images are too few to clear it" in said
    masked = diagnosis("masked", ["zero-gradients 1 (limit 0.05)"]).model_copy(
        update={"images": 50}
    )
    assert "too few" not in section(card_of(robust_run(diagnosis=masked)), "Verdict")


def test_accuracies_in_training_are_written_as_everywhere():
    last = {"epoch": 3, "clean_accuracy": 0.872, "adversarial_accuracy": 0.725}
    said = section(card_of(robust_run(last_epoch=last)), "Training")
    assert "in the last of them: 87.2 %" in said and "adversarial ones: 72.5 %" in said
