#!/usr/bin/env bash
# studies/varied.toml, its three candidates beside each other, and its winner in the paper's network:
# `wide.sh [EPOCHS [none]]`, where none leaves the study out and trains the recipe as it is.
# On one H200 the study takes about six minutes, an epoch of WRN-28-10 eleven seconds (estimated,
# both not run yet).
set -euo pipefail
. ~/lease/environment
epochs="${1:-45}" study="${2:-varied}"
bilateral() { python3 -m bilateral "$@"; }
told() { echo "$(date +%T) $*"; }

fields=()
if [ "$study" != none ]; then
  file="$HOME/lease/code/studies/$study.toml"
  trials=$(bilateral sweep "$file" --plan | sed -n 's/^\([^ ]*\/seed0\):.*/\1/p')
  for trial in $trials; do
    told "$trial"
    bilateral sweep "$file" --trial "$trial" --machine.compile on --quiet >> log/study.log 2>&1 &
    sleep 25  # the first compiles; what it leaves in the cache serves the others
  done
  wait
  bilateral sweep "$file" --json --quiet > log/study.json
  winner=$(python3 - "sweeps/$study/sweep.json" <<'END'
import json, sys

trials = json.load(open(sys.argv[1]))["trials"]
judged = [one for one in trials if one["status"] == "done"]
best = max(judged, key=lambda one: (one["robust_accuracy"], one["clean_accuracy"]))
print(best["name"].partition("/")[0])
END
  )
  told "the winner of $study is $winner"
  case "$winner" in
    half-varied) ;;
    varied) fields=(--data.vary 1.0) ;;
    awp) fields=(--method adversarial --regulariser.kind none --adversary.start-width 2.0
      --adversary.projection none --weight-perturbation 0.005) ;;
  esac
fi

told "cifar10-wide, $epochs epochs ${fields[*]}"
bilateral train cifar10-wide --epochs "$epochs" "${fields[@]}" --quiet
told "trained"
bilateral evaluate runs/cifar10-wide/seed0 --attacks pgd20 --compile --json --quiet > log/pgd.json
told "PGD-20"
bilateral evaluate runs/cifar10-wide/seed0 --attacks autoattack --images 1000 --compile --json --quiet > log/autoattack.json
told "AutoAttack on 1,000"
bilateral diagnose runs/cifar10-wide/seed0 --images 200 --json --quiet > log/diagnosis.json
told "diagnosed"
bilateral evaluate runs/cifar10-wide/seed0 --attacks apgd --compile --json --quiet > log/apgd.json
told "APGD on all: done"
