#!/usr/bin/env bash
# The recipe `cifar10-wide`, trained, attacked, diagnosed and put into results/beyond.json:
# `wide.sh [FIELD...]`. What matters most comes first, as a machine may be gone before the end.
# IMAGES (1000) is how many of the test images AutoAttack sees. Once it is trained, the runs of
# BESIDE, a study, use what it leaves of the device.
set -euo pipefail
. ~/lease/environment
images="${IMAGES:-1000}"
bilateral() { python3 -m bilateral "$@"; }
told() { echo "$(date +%T) cifar10-wide: $*"; }

for _ in $(seq 120); do [ -f log/warm-cifar10-wide.json ] || sleep 1; done  # compiled by the first call
bilateral train cifar10-wide "$@" --quiet
told "trained"
if [ -n "${BESIDE:-}" ]; then
  JOBS=1 study.sh "$BESIDE" > "log/$BESIDE.txt" 2>&1 &
fi
run=runs/cifar10-wide/seed0
bilateral evaluate $run --attacks autoattack --images "$images" --compile --json --quiet > log/autoattack.json ||
  told "AutoAttack failed"
told "AutoAttack on $images"
pkill -USR1 xargs || true  # one more of the study's runs at a time
bilateral reproduce beyond --rows cifar10-wide --columns AutoAttack --images "$images" --quiet > log/row.txt || true
bilateral evaluate $run --attacks pgd20 --compile --json --quiet > log/pgd.json || told "PGD-20 failed"
bilateral reproduce beyond --rows cifar10-wide --columns clean PGD-20 --quiet > log/row.txt || true
told "PGD-20"
pkill -USR1 xargs || true
bilateral diagnose $run --json --quiet > log/diagnosis.json || told "diagnose failed"
told "diagnosed"
pkill -USR1 xargs || true
wait
told "done"
