#!/usr/bin/env bash
# `study.sh NAME [OPTION...]`: the runs of a study beside each other on one device, then the ranking.
# JOBS (4) at a time. ONLY chooses runs by patterns of grep, those of the first pattern first; after
# MINUTES those that have not begun are left. What results/ has already is not run again.
# SIGUSR1 to its xargs adds a job.
set -euo pipefail
. ~/lease/environment
file="$HOME/lease/code/studies/$1.toml"
one() {
  if [ "$(date +%s)" -gt "$LAST" ]; then return; fi
  echo "$(date +%T) $2"
  python3 -m bilateral sweep "$1" --trial "$2" "${@:3}" --quiet
}
export -f one
export LAST=$(($(date +%s) + 60 * ${MINUTES:-60}))

done_before() {
  python3 -c "
import json, pathlib
path = pathlib.Path('$HOME/lease/code/results/sweeps/$1.json')
trials = json.loads(path.read_text())['trials'] if path.exists() else []
print(*(trial['name'] for trial in trials if trial['status'] == 'done'), sep='\n')"
}
names=$(python3 -m bilateral sweep "$file" --plan | sed -n 's/^\([^ ]*\/seed[0-9]*\):.*/\1/p' |
  grep -vxFf <(done_before "$1") || true)
for pattern in ${ONLY:-.}; do grep -E -- "$pattern" <<< "$names" || true; done | awk '!seen[$0]++' |
  xargs -P "${JOBS:-4}" -I{} bash -c 'one "$@"' - "$file" {} "${@:2}" >> "log/study-$1.log" 2>&1 ||
  echo "$(date +%T) $1: a run failed"
python3 -m bilateral sweep "$file" --minutes 0 --quiet
