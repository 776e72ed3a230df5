#!/usr/bin/env bash
# `peer.sh RECIPE SEED-FOLDER`: pyautoattack and our AutoAttack on the same thousand images.
set -euo pipefail
. ~/lease/environment
python3 -m bilateral bench evaluate "runs/$1/$2" --images 1000 --attacks autoattack --peer-batch-sizes 1000 \
  --compile --json --quiet > "log/$1-$2-peer.json"
echo "$(date +%T) $1 $2: pyautoattack"
