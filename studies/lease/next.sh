#!/usr/bin/env bash
# The study `overfit`, and what follows by its rule: three seeds of its winner on the whole test set,
# in runs/cifar10-strong; or, where no run keeps enough, the third seed of the recipe as it stands.
# The last seed is trained alone, so that its seconds are a measurement.
set -uo pipefail
. ~/lease/environment
told() { echo "$(date +%T) $*"; }
trap 'told "exit $?: done"' EXIT  # look.sh waits for this line
train() {
  python3 -m bilateral train "$1" --name cifar10-strong --seed "$2" --quiet
  told "seed $2: trained"
}
attack() {
  python3 -m bilateral evaluate "runs/cifar10-strong/seed$1" --attacks autoattack --compile --json --quiet \
    > "log/autoattack-$1.json"
  told "seed $1: AutoAttack"
}

JOBS=2 study.sh overfit > log/overfit.txt 2>&1
winner=$(python3 - << 'END_OF_PYTHON'
import json

trials = json.load(open("sweeps/overfit/sweep.json"))["trials"]
keeps, _, name = max((t["robust_accuracy"] or 0, t["clean_accuracy"] or 0, t["name"]) for t in trials)
print(name if keeps > 0.5 else "")
END_OF_PYTHON
)
told "overfit: ${winner:-the recipe stays}"

if [ -n "$winner" ]; then
  seeds="0 1 2" from="sweeps/overfit/$winner/config.json"
  mkdir -p runs/cifar10-strong
  cp -rT "sweeps/overfit/$winner" runs/cifar10-strong/seed0
  attack 0 &
  train "$from" 1
  wait
  train "$from" 2
  attack 1 &
  attack 2
  wait
else
  seeds=2
  train cifar10-strong 2
  attack 2
fi
for seed in $seeds; do measure.sh cifar10-strong "seed$seed"; done
peer.sh "cifar10-strong" "seed${seeds%% *}"
