#!/usr/bin/env bash
# The study `varied`; then of `halves` what is left at 8/255, the method's first half before all; then
# AutoAttack on a run that was carried along (RUN), from where it stopped, until the time is up.
set -uo pipefail
. ~/lease/environment
told() { echo "$(date +%T) $*"; }
trap 'told "exit $?: done"' EXIT  # look.sh waits for this line

JOBS=3 study.sh varied > log/varied.txt 2>&1
told "varied"
ONLY='epsilon-8-.*-most-confusing-.*-(one-hot|ratio-9)/ epsilon-8-.*-(none|most-confusing)-.*-smoothed/
  epsilon-8-.*-(nearest|random)-(random|wide)-(one-hot|ratio-9)/ epsilon-8-' JOBS=3 MINUTES=6 study.sh halves > log/halves.txt 2>&1
told "halves"
if [ -n "${RUN:-}" ]; then
  python3 -m bilateral evaluate "runs/$RUN" --attacks autoattack --compile --json --quiet > log/autoattack.json
  told "AutoAttack on $RUN"
fi
