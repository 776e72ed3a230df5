#!/usr/bin/env bash
# `others.sh RECIPE...`: recipes that have never been run, one seed each, trained alone and then attacked
# and diagnosed; after them runs of the study `halves` until MINUTES (28) have passed in all. If the third
# seed of `cifar10-strong` was carried, pyautoattack comes first.
set -uo pipefail
. ~/lease/environment
began=$(date +%s)
told() { echo "$(date +%T) $*"; }
trap 'told "exit $?: done"' EXIT  # look.sh waits for this line

if [ -f runs/cifar10-strong/seed2/model.safetensors ]; then
  peer.sh cifar10-strong seed2 || told "no peer"
fi
for recipe in "$@"; do
  for _ in $(seq 60); do  # its data may be on their way
    python3 -m bilateral data check "${recipe%%-*}" > /dev/null 2>&1 && break
    sleep 1
  done
  if python3 -m bilateral train "$recipe" --quiet; then
    told "$recipe: trained"
    measure.sh "$recipe" seed0 || told "$recipe: not all measured"
  else
    told "$recipe: training failed"
  fi
done
left=$((${MINUTES:-28} - ($(date +%s) - began) / 60))
ONLY='epsilon-8-255-target-(nearest|random)-(random|wide)-(one-hot|ratio-9)/ epsilon-8-.*-ratio-(20|40)/ epsilon-8- epsilon-4-' \
  JOBS=3 MINUTES=$left study.sh halves > log/halves.txt 2>&1
