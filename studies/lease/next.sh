#!/usr/bin/env bash
# The study `varied`, and what follows by its rule: three seeds of its winner on the whole test set,
# in runs/cifar10-strong; or, where no run keeps enough, the third seed of the recipe as it stands.
set -uo pipefail
. ~/lease/environment
told() { echo "$(date +%T) $*"; }
trap 'told "exit $?: done"' EXIT  # look.sh waits for this line

JOBS=3 study.sh varied > log/varied.txt 2>&1
winner=$(python3 - << 'END'
import json

trials = json.load(open("sweeps/varied/sweep.json"))["trials"]
keeps, _, name = max((t["robust_accuracy"] or 0, t["clean_accuracy"] or 0, t["name"]) for t in trials)
print(name if keeps > 0.495 else "")
END
)
told "varied: ${winner:-the recipe stays}"

seeds="0 1 2" from="sweeps/varied/$winner/config.json"
if [ -n "$winner" ]; then
  mkdir -p runs/cifar10-strong
  cp -rT "sweeps/varied/$winner" runs/cifar10-strong/seed0
else
  seeds=2 from=cifar10-strong
fi
for seed in $seeds; do
  python3 -m bilateral train "$from" --name cifar10-strong --seed "$seed" --quiet
  told "seed $seed: trained"
  python3 -m bilateral evaluate "runs/cifar10-strong/seed$seed" --attacks autoattack --compile --json --quiet > "log/autoattack-$seed.json"
  told "seed $seed: AutoAttack"
done
for seed in $seeds; do measure.sh cifar10-strong "seed$seed"; done
