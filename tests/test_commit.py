"""Which commit a measurement names: that of our own repository, and never somebody else's."""

import subprocess

import bilateral
from bilateral import runtime

OWNER = ["-c", "user.name=a", "-c", "user.email=a@b"]
VERSION = f"version {bilateral.__version__}"


def repository(folder, *tracked):
    """A repository with one commit of some files; the commit's name."""

    def git(*words):
        words = ["git", "-C", str(folder), *OWNER, *words]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "--quiet")
    git("add", "--", *map(str, tracked))
    git("commit", "--quiet", "--allow-empty", "-m", "one")
    return git("rev-parse", "--short", "HEAD")


def installed(folder):
    file = folder / "site-packages" / "bilateral" / "runtime.py"
    file.parent.mkdir(parents=True)
    file.write_text("")
    return file


def test_of_our_own_repository_it_is_the_commit(tmp_path, monkeypatch):
    file = installed(tmp_path)
    monkeypatch.setattr(runtime, "__file__", str(file))
    assert runtime.commit() == VERSION, "no repository"
    assert repository(tmp_path, file) == runtime.commit()


def test_an_environment_inside_somebodys_repository_is_not_of_their_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(runtime, "__file__", str(installed(tmp_path)))
    repository(tmp_path)
    assert runtime.commit() == VERSION


def test_without_git_it_is_the_version(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert runtime.commit() == VERSION
