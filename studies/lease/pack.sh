#!/usr/bin/env bash
# `pack.sh [RUN]` makes carry/, what a lent machine without a network needs: CIFAR-10 in two halves of
# 50 MiB, the packages that it lacks (compiled for its Python), and the history, so that results know
# their commit. A run's folder, with weights of any size, becomes carry/run.00 and on, 50 MiB each.
# PACKS names folders of sprites of other data sets, such as .../svhn: each becomes carry/svhn-first
# and carry/svhn-second.
set -euo pipefail
run="${1:+$(realpath "$1")}"
cd "$(dirname "$0")/../.."
python="${PYTHON:-.venv/bin/python}"
rm -rf carry
mkdir -p carry/packages
"$python" studies/lease/sprites.py carry/first carry/second
"$python" -m pip install --quiet --no-compile --disable-pip-version-check --no-deps --target carry/packages \
  -c constraints.txt --python-version "${MACHINE_PYTHON:-3.12}" --platform manylinux2014_x86_64 \
  --only-binary=:all: \
  annotated-types pydantic pydantic-core typing-extensions typing-inspection \
  docstring-parser tyro typeguard pytest-timeout pyautoattack
rm -rf carry/packages/pyautoattack/examples
tar cJf carry/first/packages.txz -C carry packages
rm -rf carry/packages
for pack in ${PACKS:-}; do
  name=$(basename "$pack")
  mkdir "carry/$name-first" "carry/$name-second"
  cp "$pack"/train-0[0-2].webp "carry/$name-first"
  cp "$pack"/train-0[3-4].webp "$pack"/test-00.webp "$pack"/*.npy "carry/$name-second"
done
git bundle create --quiet carry/first/history.bundle --branches
if [ -n "$run" ]; then
  tar cf - --exclude checkpoint.pt -C "$run/../.." "$(basename "$(dirname "$run")")/$(basename "$run")" |
    tee >(sha256sum > carry/first/run.digest) | split -b 50M -d - carry/run.
fi
du -sh carry/*
