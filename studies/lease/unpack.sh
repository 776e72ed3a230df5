#!/usr/bin/env bash
# On the lent machine, from the repository's copy: puts what has been carried so far into ~/lease.
# The call that brings carry/second (and carry/first before it) makes the data set whole, and so for
# other data sets; a run's folder is there when its last piece has come.
set -euo pipefail
lease=~/lease
mkdir -p "$lease"/{pack,data,log}
if [ ! -d "$lease/code" ]; then  # by the first call alone: what it started runs from there
  git clone --quiet --branch main carry/first/history.bundle "$lease/code"
  tar xJf carry/first/packages.txz -C "$lease"
fi
for half in first second; do
  if [ -d "carry/$half" ]; then cp carry/"$half"/*.{webp,npy} "$lease/pack/" 2>/dev/null || true; fi
done
cp carry/run.* carry/first/run.digest "$lease/pack/" 2>/dev/null || true
if [ -f "$lease/pack/run.digest" ] && [ ! -d "$lease/runs" ] &&
  cat "$lease"/pack/run.[0-9]* 2>/dev/null | sha256sum --check --status "$lease/pack/run.digest"; then
  mkdir "$lease/runs"  # the last piece has come
  cat "$lease"/pack/run.[0-9]* | tar x -C "$lease/runs"
fi
cat > "$lease/environment" <<END
export PATH="$lease/code/studies/lease:\$PATH" PYTHONPATH="$lease/code/src:$lease/packages"
export BILATERAL_DATA="$lease/data" PYTHONUNBUFFERED=1
cd "$lease"
END
fetch() { (. "$lease/environment" && python3 -m bilateral data fetch "$1" --source "$2"); }
if [ -d carry/second ]; then fetch cifar10 "$lease/pack"; fi
for half in carry/*-first carry/*-second; do
  if [ -d "$half" ]; then
    name=$(basename "${half%-*}")
    mkdir -p "$lease/pack-$name"
    cp "$half"/* "$lease/pack-$name/"
    if [ "$half" = "carry/$name-second" ]; then fetch "$name" "$lease/pack-$name"; fi
  fi
done
