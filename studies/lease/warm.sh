#!/usr/bin/env bash
# `warm.sh RECIPE...`: compiles the steps of recipes on noise, while the data set is still on its way.
. ~/lease/environment
for recipe in "$@"; do
  (
    python3 -m bilateral bench train "$recipe" --seconds 1 --json --quiet > "log/warm-$recipe.tmp"
    mv "log/warm-$recipe.tmp" "log/warm-$recipe.json"
  ) &
done
wait
