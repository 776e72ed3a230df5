#!/usr/bin/env bash
# `weights.sh RUN`: brings a small model's weights home, in pieces that fit: put them together with cat.
. ~/lease/environment
split -b 15728640 -d "$1/model.safetensors" "$OUT/weights."
sha256sum "$1/model.safetensors"
