#!/usr/bin/env bash
# `next.sh STUDY [COMMAND...]`: a study of candidates for `cifar10-strong`, and what follows by its rule:
# three seeds of its winner on the whole test set, in runs/cifar10-strong; or, where no run keeps more
# than half, the command. The last seed is trained alone, so that its seconds are a measurement.
set -uo pipefail
. ~/lease/environment
study=$1
told() { echo "$(date +%T) $*"; }
trap 'told "exit $?: done"' EXIT  # look.sh waits for this line
train() {
  python3 -m bilateral train "$1" --name cifar10-strong --seed "$2" --quiet && told "seed $2: trained" ||
    told "seed $2: training failed"
}
attack() {
  python3 -m bilateral evaluate "runs/cifar10-strong/seed$1" --attacks autoattack --compile --json --quiet \
    > "log/autoattack-$1.json" && told "seed $1: AutoAttack" || told "seed $1: AutoAttack failed"
}

JOBS=2 study.sh "$study" > "log/$study.txt" 2>&1
winner=$(python3 - "$study" << 'END_OF_PYTHON'
import json, sys

trials = json.load(open(f"sweeps/{sys.argv[1]}/sweep.json"))["trials"]
assert all(t["status"] == "done" for t in trials), "not all judged"
keeps, _, name = max((t["robust_accuracy"], t["clean_accuracy"], t["name"]) for t in trials)
print(name if keeps > 0.5 else "")
END_OF_PYTHON
) || exit 1
told "$study: ${winner:-the recipe stays}"
if [ -z "$winner" ]; then
  "${@:2}"
  exit
fi

if [ -d runs/cifar10-strong ]; then mv runs/cifar10-strong runs/carried; fi
mkdir -p runs/cifar10-strong
cp -rT "sweeps/$study/$winner" runs/cifar10-strong/seed0
attack 0 &
train "sweeps/$study/$winner/config.json" 1
wait
train "sweeps/$study/$winner/config.json" 2
attack 1 &
attack 2
wait
for seed in 0 1 2; do measure.sh cifar10-strong "seed$seed" || told "seed $seed: not all measured"; done
peer.sh cifar10-strong seed0
