"""The files of a run folder and of what is measured from it."""

import io
import json
import math
import struct
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random

import torch
from fuzz_format import Format
from mutation import damage, strange_json

from bilateral.config import Data, Run, run_from_json
from bilateral.data.datasets import Split, load
from bilateral.evaluation.attack_files import evaluations
from bilateral.evaluation.campaign import Campaign, evaluate_target
from bilateral.evaluation.comparison import compare
from bilateral.evaluation.diagnosis import (
    Curves,
    Diagnosis,
    Effort,
    Reading,
    Surface,
)
from bilateral.evaluation.gallery import Gallery
from bilateral.evaluation.target import Target, trained_model
from bilateral.evaluation.transfer import Participant, SourceFile, TargetFlags, _known
from bilateral.evaluation.verification import kept_images, verify_images
from bilateral.export.files import ExportedFile, Manifest, claim
from bilateral.models import build_model
from bilateral.paper.pages import read_rows
from bilateral.paper.reproduce import together
from bilateral.reading import read_record
from bilateral.results import AttackFile, summarise_members
from bilateral.runs import RunFolder, write_json
from bilateral.training.progress import TrainingProgress
from bilateral.training.trainer import Trainer
from bilateral.weights import write_weights

CPU = torch.device("cpu")
RUN = Run(model="small-cnn", data=Data(name="digits", augment="none"), epochs=2)
EPSILON = 40 / 255


@cache
def _split() -> Split:
    whole = load("digits", "test")
    return Split(whole.pixels[:40], whole.labels[:40], whole.classes)


@cache
def _target(folder: Path) -> Target:
    """A run folder of an untrained network, evaluated on a few digits."""
    return _evaluated(RunFolder(folder / "run"), seed=0)


@cache
def _beside(folder: Path) -> RunFolder:
    """Another, whose files stay whole."""
    return _evaluated(RunFolder(folder / "beside"), seed=1).folder


def _evaluated(run: RunFolder, seed: int) -> Target:
    run.prepare(RUN, {"device": "cpu"})
    torch.manual_seed(seed)
    about = {"classes": list("0123456789"), "channels": 1, "image_size": [8, 8]}
    model = build_model("small-cnn", 10, 1)
    write_weights(run.weights, model, about)
    target = Target(str(run.path), model.eval(), run, "digits", _split(), "", RUN.labels)
    evaluate_target(target, ["fgsm"], EPSILON, 20, CPU, save_adversarial=True)
    return target


def _in_run(name: str) -> Callable[[Path], bytes]:
    """A file of the evaluated run."""
    return lambda folder: (_target(folder).folder.path / name).read_bytes()


def _replace(folder: Path, name: str, content: bytes) -> RunFolder:
    run = _target(folder).folder
    (run.path / name).write_bytes(content)
    return run


def _config(content: bytes, folder: Path) -> None:
    run = _replace(folder, "config.json", content).read_run()
    again = run_from_json(json.dumps({"run": run.model_dump(mode="json")}), "again")
    assert again == run


ATTACK = "attacks/fgsm@40-255.json"


def _attack(content: bytes, folder: Path) -> None:
    run = _replace(folder, ATTACK, content)
    found = compare([str(run.path), str(_beside(folder).path)], "fgsm", "40/255")
    assert all(0 <= line.accuracy <= 1 for line in found.runs)
    campaign = Campaign(_target(folder), EPSILON, 20, CPU)
    file = campaign.files.known("fgsm", campaign.numbers, any_precision=True)
    if set(campaign.numbers.tolist()) <= set(file.images):
        summary = summarise_members(file.members, campaign.numbers.tolist())
        assert 0 <= summary.accuracy <= 1 and math.isfinite(summary.seconds)
        json.dumps(summary.model_dump(), allow_nan=False)
    write_json(folder / "again.json", file.model_dump(by_alias=True))
    assert read_record(folder / "again.json", AttackFile) == file


def _evaluation(content: bytes, folder: Path) -> None:
    run = _replace(folder, "evaluation.json", content)
    for entry in evaluations(run).entries:
        assert 0 <= entry.clean_accuracy <= 1 and 0 <= entry.worst_case_accuracy <= 1
    write_json(folder / "again.json", evaluations(run).model_dump(by_alias=True))


def _adversarial(content: bytes, folder: Path) -> None:
    run = _replace(folder, "adversarial/fgsm@40-255.npz", content)
    stored, kept = kept_images(run.path / "adversarial" / "fgsm@40-255.npz")
    found = verify_images(stored, kept, _target(folder), CPU)
    assert 0 <= found.fooled <= found.images <= 40
    json.dumps(found.model_dump(mode="json"), allow_nan=False)


def _gallery(content: bytes, folder: Path) -> None:
    run = _replace(folder, "gallery.npz", content)
    campaign = Campaign(_target(folder), EPSILON, 20, CPU)
    gallery = Gallery(_target(folder), campaign.common)
    gallery.begin(
        "fgsm", campaign.files.known("fgsm", campaign.numbers, any_precision=True).members
    )
    for example in gallery.kept["fgsm"].values():
        assert example.clean.shape == example.adversarial.shape == (1, 8, 8)
    gallery._changed.add("fgsm")
    gallery.write()
    assert run.gallery.is_file()


def in_zip(*names: str) -> Callable[[Random, bytes], bytes]:
    """Damage to a member of a zip file that has the right checksum, at its ends mostly."""

    def mutate(random: Random, content: bytes) -> bytes:
        out = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
            members = [each.filename for each in old.infolist()]
            chosen = random.choice([each for each in members if each.endswith(names)] or members)
            for member in members:
                data = old.read(member)
                new.writestr(member, damage(random, data) if member == chosen else data)
        return out.getvalue()

    return mutate


def _safetensors_header(random: Random, content: bytes) -> bytes:
    """Strange JSON in the header of a safetensors file, or in the metadata in it."""
    (size,) = struct.unpack_from("<Q", content)
    header, tensors = content[8 : 8 + size], content[8 + size :]
    if random.random() < 0.5:
        value = json.loads(header)
        about = value["__metadata__"]["bilateral"].encode()
        value["__metadata__"]["bilateral"] = strange_json(random, about).decode()
        header = json.dumps(value).encode()
    else:
        header = strange_json(random, header)
    return struct.pack("<Q", len(header)) + header + tensors


def _safetensors(content: bytes, folder: Path) -> None:
    run = _replace(folder, "model.safetensors", content)
    (run.path / "config.json").write_text(json.dumps({"run": RUN.model_dump(mode="json")}))
    _, model = trained_model(run, CPU)
    own = _target(folder).model.state_dict()
    for name, value in model.state_dict().items():
        assert value.shape == own[name].shape and bool(value.isfinite().all())


@cache
def _trainer(folder: Path) -> Trainer:
    run = RunFolder(folder / "training")
    trainer = Trainer(RUN, run, _split(), CPU, TrainingProgress(quiet=True))
    run.prepare(RUN, {})
    trainer.take(next(iter(trainer.batches.epoch(0))), 0)
    trainer._save()
    return trainer


def _checkpoint(folder: Path) -> bytes:
    return _trainer(folder).folder.checkpoint.read_bytes()


def _restore(content: bytes, folder: Path) -> None:
    trainer = _trainer(folder)
    trainer.folder.checkpoint.write_bytes(content)
    trainer._restore()
    assert 0 <= trainer.step <= trainer.total_steps
    assert math.isfinite(trainer.logbook.seconds + sum(trainer.engine.sums()))
    total = sum(
        float(value.double().sum()) for value in trainer.learner.model.state_dict().values()
    )
    assert isinstance(total, float)


def _log(content: bytes, folder: Path) -> None:
    run = RunFolder(folder / "run")
    run.log.write_bytes(content)
    assert isinstance(run.last_record(), dict)
    run.cut_log(1)
    epochs = [json.loads(line)["epoch"] for line in run.log.read_bytes().splitlines()]
    assert all(epoch <= 1 for epoch in epochs)


def _prepare_log(folder: Path) -> bytes:
    (folder / "run").mkdir()
    lines = [json.dumps({"epoch": number, "loss": 0.5, "seconds": 1.0}) for number in (1, 2)]
    return "".join(f"{line}\n" for line in lines).encode()


def _diagnosis(folder: Path) -> bytes:
    reading = Reading(
        name="x", value=1.0, limit=2.0, raised=False, severity="masked", raised_if="", meaning=""
    )
    found = Diagnosis(
        schema=1,
        verdict="holds",
        reasons=["none"],
        readings=[reading],
        gradient_magnitude=[],
        histograms=[],
        loss_surface=Surface(images=1, offsets=[0.0, 1.0], loss=[[1.0, 2.0], [3.0, 4.0]]),
        curves=Curves(epsilon=[], steps=[]),
        accuracies={"clean": 0.5},
        images=1,
        epsilon=0.1,
        epsilon_text="0.1",
        effort=Effort(),
        seconds=1.0,
        weights_digest="00",
        versions={},
    )
    return found.model_dump_json(by_alias=True).encode()


def _read_diagnosis(content: bytes, folder: Path) -> None:
    (folder / "diagnostics.json").write_bytes(content)
    found = read_record(folder / "diagnostics.json", Diagnosis)
    assert found.verdict in ("holds", "suspect", "masked")


def _blank() -> SourceFile:
    participant = Participant("a", torch.nn.Identity(), "00")
    return SourceFile(
        schema=1,
        attack="fgsm",
        settings={"fgsm": {"steps": 1}},
        source=participant.name,
        weights_digest="00",
        code_digest="",
        data="digits",
        data_digest="11",
        targets={"b": TargetFlags(weights_digest="22", code_digest="")},
        versions={},
    )


def _flags(folder: Path) -> bytes:
    file = _blank()
    file.targets["b"].right = {0: True, 5: False}
    return file.model_dump_json(by_alias=True).encode()


def _read_flags(content: bytes, folder: Path) -> None:
    (folder / "flags.json").write_bytes(content)
    file = _known(folder / "flags.json", _blank())
    assert file.attack == "fgsm" and set(map(type, file.targets["b"].right)) <= {int}
    write_json(folder / "again.json", file.model_dump(by_alias=True))


def _manifest(folder: Path) -> bytes:
    exported = ExportedFile(
        name="model.py",
        format="safetensors",
        sha256="00",
        bytes=1,
        largest_difference=0.0,
        images=1,
        images_from="noise",
    )
    manifest = Manifest(schema=1, weights_digest="00", files=[exported])
    return manifest.model_dump_json(by_alias=True).encode()


def _read_manifest(content: bytes, folder: Path) -> None:
    (folder / "export.json").write_bytes(content)
    manifest = claim(folder, "00", ("model.py",))
    assert manifest.weights_digest == "00" and manifest.present(folder) == []


ROW = {
    "title": "a",
    "recipe": "b",
    "clean_accuracy": 0.5,
    "attacks": {"fgsm": {"accuracy": 0.5, "images": 10}},
    "other": {"x": {"value": 1.0, "images": 10}},
    "device": "cpu",
    "commit": "abc",
    "command": "bilateral reproduce cifar10",
}


def _read_rows(content: bytes, folder: Path) -> None:
    (folder / "rows.json").write_bytes(content)
    for row in read_rows(folder / "rows.json"):
        merged = together(row, dict(ROW))
        assert merged["attacks"]["fgsm"]["accuracy"] == 0.5
        write_json(folder / "again.json", merged)


_JSON = (strange_json,)
RUN_FORMATS = [
    Format("config.json", _in_run("config.json"), _config, _JSON),
    Format("attack json", _in_run(ATTACK), _attack, _JSON),
    Format("evaluation.json", _in_run("evaluation.json"), _evaluation, _JSON),
    Format("diagnostics.json", _diagnosis, _read_diagnosis, _JSON),
    Format("transfer flags json", _flags, _read_flags, _JSON),
    Format("export.json", _manifest, _read_manifest, _JSON),
    Format("results json", lambda folder: json.dumps([ROW, ROW]).encode(), _read_rows, _JSON),
    Format("log.jsonl", _prepare_log, _log),
    Format("safetensors", _in_run("model.safetensors"), _safetensors, (_safetensors_header,)),
    Format("checkpoint", _checkpoint, _restore, (in_zip("data.pkl"), in_zip())),
    Format(
        "adversarial npz",
        _in_run("adversarial/fgsm@40-255.npz"),
        _adversarial,
        (in_zip(), in_zip("about.npy", "numbers.npy")),
    ),
    Format("gallery.npz", _in_run("gallery.npz"), _gallery, (in_zip(),)),
]
