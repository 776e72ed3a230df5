#!/usr/bin/env bash
# `look.sh SECONDS`: waits, shows how far the work is, and brings home all but weights.
. ~/lease/environment
for _ in $(seq "${1:-60}"); do
  sleep 1
  if grep -q "done$" log/queue.log; then break; fi
done
tail -n 12 log/queue.log
tail -n 6 log/study-*.log 2> /dev/null
tail -qn 1 runs/*/seed*/log.jsonl sweeps/*/*/seed*/log.jsonl 2> /dev/null | cut -c 1-330
nvidia-smi --query-gpu=memory.used,utilization.gpu --format=csv,noheader
tar czf "$OUT/home.tgz" --exclude '*.safetensors' --exclude '*.pt' --exclude '*.npz' \
  log $(ls -d runs results sweeps 2> /dev/null)
