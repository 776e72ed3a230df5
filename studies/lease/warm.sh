#!/usr/bin/env bash
# `warm.sh RECIPE [FIELD...]`: compiles a recipe's steps on noise, while the data set is still on its way.
. ~/lease/environment
log="log/warm-$1"
python3 -m bilateral bench train "$@" --seconds 1 --json --quiet > "$log.tmp"
mv "$log.tmp" "$log.json"
