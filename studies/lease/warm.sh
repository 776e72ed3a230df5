#!/usr/bin/env bash
# `warm.sh RECIPE`: compiles a recipe's step on noise, while the data set is still on its way.
. ~/lease/environment
python3 -m bilateral bench train "$@" --seconds 1 --json --quiet > log/warm.tmp || true
mv log/warm.tmp log/warm.json
