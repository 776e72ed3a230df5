#!/usr/bin/env bash
# `study.sh NAME [OPTION...]`: the runs of a study beside each other on one device, then the ranking.
set -euo pipefail
. ~/lease/environment
file="$HOME/lease/code/studies/$1.toml"
sweep() { python3 -m bilateral sweep "$file" "$@"; }

trials=$(sweep --plan | sed -n 's/^\([^ ]*\/seed[0-9]*\):.*/\1/p')
for trial in $trials; do
  echo "$(date +%T) $trial"
  sweep --trial "$trial" "${@:2}" --quiet >> "log/study-$1.log" 2>&1 &
  sleep "${APART:-25}"  # the first compiles; what it leaves in the cache serves the others
done
wait
sweep --quiet
