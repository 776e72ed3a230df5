#!/usr/bin/env bash
# The study `varied`; its winner, by the rule there, as `cifar10-strong` on the test set; and the same
# in WRN-28-10 beside it. What each candidate's recipe would be is a branch, `pick/NAME`.
set -euo pipefail
. ~/lease/environment
told() { echo "$(date +%T) $*"; }
trap 'told "exit $?: done"' EXIT  # look.sh waits for this line

for _ in $(seq 120); do [ -f log/warm-cifar10-strong.json ] || sleep 1; done
APART=10 study.sh varied
read -r winner kept <<< "$(python3 -m bilateral sweep ~/lease/code/studies/varied.toml --quiet --json | python3 -c '
import json, sys
best = max(json.load(sys.stdin), key=lambda one: (one["robust_accuracy"] or 0, one["clean_accuracy"]))
print(best["name"].partition("/")[0], round(1000 * best["robust_accuracy"]))')"
told "$winner keeps $kept of 1000"
git -C ~/lease/code checkout --quiet "pick/$winner"
wide.sh > log/wide.txt 2>&1 &
if [ "$kept" -gt 495 ]; then
  mkdir -p runs/cifar10-strong
  cp -r "sweeps/varied/$winner/seed0" runs/cifar10-strong/
  measure.sh cifar10-strong seed0 || told "cifar10-strong failed"
fi
wait
python3 -m bilateral bench train cifar10-strong --json --quiet > log/bench-train.json  # now alone
told "timed"
