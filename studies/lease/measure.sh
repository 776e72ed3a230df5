#!/usr/bin/env bash
# `measure.sh RECIPE SEED-FOLDER`: AutoAttack on the whole test set, PGD-20, and the diagnosis.
# What matters most comes first. Rows are put together at home: `reproduce` would train missing seeds.
set -euo pipefail
. ~/lease/environment
recipe=$1
seed=$2
run=runs/$recipe/$seed
log=log/$recipe-$seed
bilateral() { python3 -m bilateral "$@"; }
told() { echo "$(date +%T) $recipe $seed: $*"; }

bilateral evaluate "$run" --attacks autoattack --compile --json --quiet > "$log-autoattack.json"
told "AutoAttack"
bilateral evaluate "$run" --attacks pgd20 --compile --json --quiet > "$log-pgd.json"
told "PGD-20"
bilateral diagnose "$run" --json --quiet > "$log-diagnosis.json"
told "diagnosed"
