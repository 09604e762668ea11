#!/usr/bin/env bash
# The comparison of README.md: run.sh DATA_DIR OUT [STEPS], from the repository's root.
# The same command again goes on where it stopped.
set -eu
data=$1 out=$2 steps=${3:-400}
for task in alm mlm; do
  for variant in vanilla stack; do
    flag=""
    [ $variant = vanilla ] && flag=--nostack
    python -m experiments.lm --task=$task --dataset=wikitext2 --data_dir="$data" \
      --size=small $flag --seeds=0,1 --steps="$steps" --out="$out/$task-$variant"
  done
done
