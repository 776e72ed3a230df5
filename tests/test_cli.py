"""The commands through the real entry point: exit code, files, message."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

from bilateral.cli import main
from bilateral.commands import demo
from entry_point import bilateral

TRAIN = ["train", "digits-r-mc-la", "--epochs", "4", "--check-epochs", "2", "--quiet"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """An undisturbed run of four epochs, and its evaluation."""
    out = tmp_path_factory.mktemp("trained")
    assert bilateral(*TRAIN, "--out", out).returncode == 0
    return out / "digits-r-mc-la" / "seed0"


def test_help_of_a_folder_says_that_its_defaults_are_replaced(capsys):
    """It chooses by pictures that its help does not see."""
    with pytest.raises(SystemExit):
        main(["train", "folder", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "The recipe `folder` chooses network, image size, budget, batches and epochs" in said


def test_help_is_fast_and_needs_no_torch():
    started = time.monotonic()
    result = bilateral("--help")
    seconds = time.monotonic() - started
    assert result.returncode == 0
    for command in ("demo", "train", "evaluate", "list", "data"):
        assert f"\n  {command} " in result.stdout
    assert seconds < 2  # well under half a second on an idle machine; tests share two cores
    code = (
        "import sys\nfrom bilateral.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "sys.exit('torch' in sys.modules)"
    )
    for words in (
        ["--help"],
        ["train", "--help"],
        ["evaluate", "--help"],
        ["demo", "--help"],
        ["list", "--help"],
        ["data", "--help"],
        ["data", "fetch", "--help"],
        ["list", "recipes"],
    ):
        done = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, check=False
        )
        assert done.returncode == 0, (words, done.stderr)
        assert len(done.stdout) > 100


@pytest.mark.parametrize("kind", ["recipes", "models", "datasets", "attacks", "tables"])
def test_list_json_has_name_and_summary(kind):
    rows = json.loads(bilateral("list", kind, "--json").stdout)
    assert len(rows) > 3
    assert all(row["name"] and row["summary"] for row in rows)
    text = bilateral("list", kind).stdout.splitlines()
    assert [line.split()[0] for line in text] == [row["name"].split()[0] for row in rows]


def test_train_and_evaluate_write_the_run_folder(trained):
    names = {path.name for path in trained.iterdir()}
    assert {"config.json", "log.jsonl", "checkpoint.pt", "model.safetensors"} <= names
    before = (trained / "model.safetensors").stat().st_mtime_ns
    again = bilateral(*TRAIN, "--out", trained.parents[1])
    assert again.returncode == 0 and "already finished" in again.stdout
    assert (trained / "model.safetensors").stat().st_mtime_ns == before

    result = bilateral("evaluate", trained, "--attacks", "fgsm,pgd5-cw", "--images", 100, "--json")
    assert result.returncode == 0
    entry = json.loads(result.stdout)
    assert entry["images"] == 100 and entry["epsilon_text"] == "40/255"
    assert set(entry["attacks"]) == {"fgsm", "pgd5-cw"}
    flags = json.loads((trained / "attacks" / "pgd5-cw@40-255.json").read_text())
    assert len(flags["robust"]) == 100
    assert sum(flags["robust"]) / 100 == entry["attacks"]["pgd5-cw"]["accuracy"]
    stored = json.loads((trained / "evaluation.json").read_text())["entries"]
    assert [one["images"] for one in stored] == [100]

    # A larger evaluation starts from the flags that are there.
    larger = bilateral("evaluate", trained, "--attacks", "fgsm", "--images", 150, "--json")
    assert json.loads(larger.stdout)["images"] == 150
    both = json.loads((trained / "attacks" / "fgsm@40-255.json").read_text())
    assert len(both["images"]) == len(set(both["images"])) == 150
    assert (trained / "gallery.npz").exists()


def test_a_config_in_place_of_a_name_repeats_the_run(trained, tmp_path):
    done = bilateral("train", trained / "config.json", "--out", tmp_path, "--quiet")
    assert done.returncode == 0
    again = tmp_path / "digits-r-mc-la" / "seed0" / "model.safetensors"
    assert again.read_bytes() == (trained / "model.safetensors").read_bytes()


@pytest.mark.parametrize("command", ["sweep", "reproduce", "bench", "demo"])
def test_what_is_one_process_says_so_under_torchrun(command, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["list", "models"]) == 0, "a cluster's shell is no torchrun"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    capsys.readouterr()
    assert main([command, "x"]) == 2
    told = f"bilateral: {command} runs in one process; torchrun is for train and evaluate\n"
    assert capsys.readouterr().err == told


def test_what_is_repeated_keeps_its_name(tmp_path):
    words = ["train", "digits-r-mc-la", "--epochs", "1", "--check-epochs", "0", "--quiet"]
    words += ["--data.images-per-class", "5"]
    assert main([*words, "--name", "mine", "--out", str(tmp_path / "runs")]) == 0
    config, out = str(tmp_path / "runs/mine/seed0/config.json"), str(tmp_path / "again")
    for more in ([], ["--seed", "3"], ["--model", "wrn-10-1"]):
        assert main(["train", config, "--out", out, "--quiet", *more]) == 0
    found = sorted(str(path.parent.relative_to(out)) for path in Path(out).rglob("config.json"))
    assert found == ["mine-wrn-10-1/seed0", "mine/seed0", "mine/seed3"]
    loose = tmp_path / "config.json"
    loose.write_bytes(Path(config).read_bytes())
    assert main(["train", str(loose), "--out", out, "--quiet"]) == 0
    assert (Path(out) / "digits-r-mc-la" / "seed0").is_dir(), "no run folder, so no name"


@pytest.mark.kills
def test_sigkill_at_any_moment_costs_nothing_but_time(trained, tmp_path):
    """Killed again and again and started by the same command: the same weights, bit for bit."""
    command = [sys.executable, "-m", "bilateral", *TRAIN, "--out", str(tmp_path)]
    command += ["--checkpoint-seconds", "0"]
    # checkpoint_seconds is part of the configuration but not of what is computed.
    final = tmp_path / "digits-r-mc-la" / "seed0" / "model.safetensors"
    kills = 0
    for extra in (0.0, 0.15, 0.4, 0.7, 1.1):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        log = final.parent / "checkpoint.pt"
        deadline = time.monotonic() + 60
        while not log.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(extra)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    assert kills >= 1
    assert final.read_bytes() == (trained / "model.safetensors").read_bytes()
    lines = (final.parent / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2, 3, 4]


@pytest.mark.kills
@pytest.mark.parametrize("several", [True, False])
def test_what_torch_does_at_the_end_is_no_part_of_a_run_of_several_processes(several):
    """Its threads can abort an interpreter that is going; what was said by then arrives."""
    code = (
        "import atexit, os, sys\nfrom bilateral.cli import program\n"
        "atexit.register(os.abort)\nsys.argv = ['bilateral', *sys.argv[1:]]\nsys.exit(program())"
    )
    environment = {**os.environ, "WORLD_SIZE": "2" if several else "1", "TORCHELASTIC_RUN_ID": "1"}
    for words, expected in (["--version"], 0), (["nothing"], 2):
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == (expected if several else -signal.SIGABRT)
        said = done.stderr if expected else done.stdout
        assert said.startswith("bilateral: unknown command" if expected else "bilateral 0.")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("words", ["--version", "list attacks", "list attacks --json", "nothing"])
def test_closed_standard_files_are_no_failure(words, closed):
    """What cannot be printed is not; and no file that is opened later takes the number of one."""
    code = 2 if words == "nothing" else 0
    command = f"{sys.executable} -m bilateral {words} {closed}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_first(tmp_path, number, code):
    command = [
        sys.executable,
        "-m",
        "bilateral",
        "train",
        "digits-r-mc-la",
        "--epochs",
        "500",
        "--out",
        str(tmp_path),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while not process.stderr.readline().startswith("epoch 1/"):
            assert process.poll() is None
        process.send_signal(number)
        rest = process.stderr.read()
        assert process.wait(timeout=60) == code
    assert "the same command resumes from here" in rest
    assert "Traceback" not in rest
    assert (tmp_path / "digits-r-mc-la" / "seed0" / "checkpoint.pt").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "unknown command 'trian'; nearest: train"),
        (["train"], "needs a recipe"),
        (["train", "digits-r-mc-al"], "nearest: digits-r-mc-la"),
        (["train", "nowhere.json"], "no configuration at nowhere.json"),
        (["train", "digits-r-mc-la", "--model", "small-cn"], "nearest: small-cnn"),
        (["train", "digits-r-mc-la", "--data", "digit"], "nearest: digits"),
        (["train", "digits-r-mc-la", "--adversary.epsilo", "3"], "nearest: --adversary.epsilon"),
        (["train", "digits-r-mc-la", "--adversary.epsilon", "8"], "did you mean 8/255?"),
        (["train", "digits-r-mc-la", "--adversary.epsilon", "x"], "not a number or a fraction"),
        (["train", "digits-r-mc-la", "--adversary.steps", "-1"], "adversary.steps"),
        (["train", "digits-r-mc-la", "--labels.ratio", "0.5"], "labels.ratio"),
        (["train", "digits-r-mc-la", "--epochs", "0"], "epochs"),
        (["train", "digits-r-mc-la", "--epochs"], "--epochs"),
        (["train", "digits-r-mc-la", "--device", "cuda:77"], "no GPU here"),
        (["train", "digits-r-mc-la", "--device", "meta"], "cannot be used"),
        (["train", "--epochs", "1", "digits-r-mc-la"], "as its first word"),
        (["evaluate", "nowhere", "--attacks", "fgsm,no.py:attack"], "no such file: no.py"),
        (["evaluate", "nowhere", "--batch-size", "0"], "at least one image"),
        (["evaluate", "own.py"], "own.py names no function: give own.py:FUNCTION, which"),
        (["evaluate", "nowhere"], "no run folder at nowhere"),
        (["evaluate", "nowhere", "--attacks", "pgd"], "unknown attack 'pgd'"),
        (["evaluate", "nowhere", "--epsilon", "8"], "did you mean 8/255?"),
        (["evaluate", "m.py:build"], "needs --data"),
        (["list", "recipe"], "nearest: recipes"),
        (["data", "fetch", "cifar11"], "cifar10"),
        (["data", "fetsh"], "nearest: fetch"),
        (["demo", "--ot", "x"], "--out"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = main(words)
    assert_refused(code, *capsys.readouterr(), message, tmp_path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "unknown command 'trian'; nearest: train"),
        (["train", "digits-r-mc-la", "--device", "cuda:77"], "no GPU here"),
        (["evaluate", "nowhere"], "no run folder at nowhere"),
    ],
)
def test_so_it_is_in_a_process_of_its_own(words, message, tmp_path):
    result = bilateral(*words, cwd=tmp_path)
    assert_refused(result.returncode, result.stdout, result.stderr, message, tmp_path)


def assert_refused(code, out, error, message, folder):
    assert code == 2 and out == ""
    assert message in error
    assert error.startswith("bilateral: ") and error.count("\n") == 1
    assert not list(folder.iterdir())


def test_absent_data_says_what_to_run(tmp_path):
    result = bilateral("train", "cifar10-r-mc-la", cwd=tmp_path, BILATERAL_DATA=str(tmp_path / "d"))
    assert result.returncode == 2
    assert "bilateral data fetch cifar10" in result.stderr


def test_an_output_that_is_a_file_is_one_line(tmp_path):
    (tmp_path / "taken").write_text("")
    result = bilateral(*TRAIN, "--out", "taken", cwd=tmp_path)
    assert result.returncode == 2
    assert "taken" in result.stderr and result.stderr.count("\n") == 1


def test_results_are_readable_by_others(trained):
    for path in trained.iterdir():
        if path.is_file():
            assert path.stat().st_mode & 0o044 == 0o044, path


def test_a_finished_run_without_its_log_says_so(trained, tmp_path):
    copy = tmp_path / "digits-r-mc-la" / "seed0"
    copy.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (copy / name).write_bytes((trained / name).read_bytes())
    result = bilateral(*TRAIN, "--out", tmp_path)
    assert result.returncode == 0 and "already finished" in result.stdout


def test_the_same_folder_with_another_configuration_is_refused(trained):
    words = [*TRAIN, "--out", trained.parents[1], "--adversary.epsilon", "20/255"]
    before = sorted((path, path.stat().st_mtime_ns) for path in trained.rglob("*"))
    result = bilateral(*words)
    assert result.returncode == 2
    assert "adversary.epsilon" in result.stderr
    assert sorted((path, path.stat().st_mtime_ns) for path in trained.rglob("*")) == before


def test_somebodys_own_model_and_folder(tmp_path, trained):
    """`file.py:function` on `folder:PATH`, trained and evaluated by the same commands."""
    from PIL import Image

    for split, count in (("train", 12), ("val", 6)):
        for place, name in enumerate(["cat", "dog", "owl"]):
            folder = tmp_path / "pictures" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (40, 30), (80 * place, 120, 10 * number)).save(
                    folder / f"{number}.png"
                )
    (tmp_path / "own.py").write_text(
        "from torch import nn\n"
        "def build(classes):\n"
        "    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1),\n"
        "                         nn.Flatten(), nn.Linear(4, classes))\n"
    )
    words = ["--model", "own.py:build", "--data", "folder:pictures", "--image-size", 16]
    done = bilateral(
        "train", "cifar10-r-mc-la", *words, "--epochs", 1, "--name", "own", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "runs/own/seed0/config.json").read_text())
    assert config["run"]["labels"]["ratio"] is None  # classes - 1 for data of one's own
    words = ["--data", f"folder:{tmp_path}/pictures", "--attacks", "fgsm", "--images", 6]
    words += ["--out", tmp_path / "away"]
    away = bilateral("evaluate", tmp_path / "runs/own/seed0", *words, cwd=trained)
    assert away.returncode == 0, away.stderr  # the model's file is found from any folder
    entry = bilateral("evaluate", "runs/own/seed0", "--attacks", "pgd2", "--json", cwd=tmp_path)
    assert json.loads(entry.stdout)["images"] == 18
    other = bilateral(
        "evaluate",
        "own.py:build",
        "--data",
        "folder:pictures",
        "--image-size",
        16,
        "--attacks",
        "fgsm",
        "--json",
        cwd=tmp_path,
    )
    assert other.returncode == 0, other.stderr
    assert (tmp_path / "evaluations" / "own-py-build" / "evaluation.json").exists()
    assert "results go to evaluations/own-py-build\n" in other.stderr
    assert "has no val/" not in other.stderr
    bare = bilateral(
        *("evaluate", "own.py:build", "--data", "folder:pictures/train", "--image-size", 16),
        *("--attacks", "fgsm", "--json"),
        cwd=tmp_path,
    )
    told = "folder:pictures/train has no val/ or test/: about a tenth of each class is attacked, 5"
    assert told in bare.stderr and told in " ".join(json.loads(bare.stdout)["warnings"])
    words = ["--data", "folder:pictures/train", "--attacks", "fgsm", "--out", "elsewhere"]
    assert told in bilateral("evaluate", "runs/own/seed0", *words, cwd=tmp_path).stderr


def test_the_step_follows_another_budget(tmp_path):
    """A step of twice the budget would end at the same corner from any start."""
    words = ["train", "digits-r-mc-la", "--epochs", "1", "--quiet", "--out", str(tmp_path)]
    words += ["--adversary.epsilon", "20/255"]
    assert main([*words, "--name", "scaled"]) == 0
    assert main([*words, "--name", "own", "--adversary.step-size", "30/255"]) == 0
    for name, pixels in (("scaled", 20), ("own", 30)):
        config = json.loads((tmp_path / name / "seed0" / "config.json").read_text())
        assert config["run"]["adversary"]["step_size"] == pytest.approx(pixels / 255)


def test_near_misses_are_answered(trained, tmp_path):
    (tmp_path / "pictures").mkdir()
    other = shutil.copytree(trained, tmp_path / "other")
    for words, message in (
        (["train", "digits-r-mc-la", "--data", "pictures"], "did you mean folder:pictures?"),
        (["evaluate", trained.parent], f"did you mean {trained}?"),
        (["compare", "here", "there"], "no run folder at here"),
        (["compare", trained, other, "--attack", "spsa"], "has no flags of spsa"),
    ):
        result = bilateral(*words, cwd=tmp_path)
        assert result.returncode == 2
        assert message in result.stderr, result.stderr


def test_what_pgd_leaves_is_called_an_upper_bound(tmp_path, trained, capsys):
    shutil.copytree(trained, tmp_path / "run")
    words = ["evaluate", str(tmp_path / "run"), "--images", "20", "--quiet", "--attacks"]
    for attack, told in (("fgsm", True), ("apgd", False), ("pgd5", False)):
        assert main([*words, attack]) == 0
        assert ("upper bounds: AutoAttack, which was not run" in capsys.readouterr().out) == told


def test_formats(trained, capsys):
    words = ["evaluate", str(trained), "--attacks", "fgsm", "--images", "100", "--format"]
    for name, sign in (("markdown", "| --- |"), ("csv", "attack,"), ("latex", "\\begin{tabular}")):
        assert main([*words, name]) == 0
        assert sign in capsys.readouterr().out


def test_advice_of_the_compiler_is_not_passed_on():
    """torch 2.11 gives it on every GPU, of float32 products that training does not do."""
    assert main(["list", "models"]) == 0
    warnings.warn(
        "TensorFloat32 tensor cores for float32 matrix multiplication available but not enabled. "
        "Consider setting `torch.set_float32_matmul_precision('high')` for better performance.",
        stacklevel=1,
    )


def test_demo_names_what_it_trains(monkeypatch, capsys):
    """A log without a terminal's bar would not say whose epochs these are."""
    monkeypatch.setattr(demo, "train_run", lambda *_: {"folder": "none"})
    entry = SimpleNamespace(model_dump=lambda mode: {})
    monkeypatch.setattr(demo, "evaluate_run", lambda *_: entry)
    monkeypatch.setattr(demo, "diagnose_target", lambda *_: None)
    monkeypatch.setattr(demo, "write_report", lambda *_: {"report": "none"})
    assert main(["demo", "--json"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "training digits-undefended (1 of 2)",
        "training digits-r-mc-la (2 of 2)",
    ]
    assert main(["demo", "--json", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_demo_keeps_its_promise(tmp_path):
    """The undefended twin under 20 %, R-MC-LA above 60 % under PGD-20 at 40/255."""
    result = bilateral("demo", "--out", tmp_path, "--json")
    assert result.returncode == 0
    entries = json.loads(result.stdout)
    readings = {name: entry["attacks"]["pgd20"]["accuracy"] for name, entry in entries.items()}
    assert readings["digits-undefended"] < 0.2
    assert readings["digits-r-mc-la"] > 0.6
    assert Path(tmp_path / "digits-r-mc-la" / "seed0" / "evaluation.json").exists()
    page = (tmp_path / "report.html").read_text()
    for shown in ("digits-undefended/seed0", "digits-r-mc-la/seed0", "Accuracy against the budget"):
        assert shown in page
    assert "Missing or damaged" not in page


def test_json_is_one_document_whatever_a_model_prints(tmp_path):
    (tmp_path / "own.py").write_text(
        "import atexit, os\nfrom torch import nn\n\n"
        "atexit.register(print, 'at the end')\n\n"
        "class Talks(nn.Sequential):\n"
        "    def forward(self, images):\n"
        "        print('forward', images.shape)\n"
        "        return super().forward(images)\n\n"
        "def build(classes, channels):\n"
        "    print('building')\n"
        "    os.system('echo by another program')\n"
        "    return Talks(nn.Flatten(), nn.Linear(64 * channels, classes)).eval()\n"
    )
    words = ["--data", "digits", "--attacks", "fgsm", "--images", 20, "--quiet"]
    done = bilateral("evaluate", "own.py:build", *words, "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["images"] == 20
    said = ("building", "forward", "by another program", "at the end")
    assert all(words in done.stderr for words in said)
    assert "building" in bilateral("evaluate", "own.py:build", *words, cwd=tmp_path).stdout
