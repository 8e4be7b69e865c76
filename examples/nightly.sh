#!/usr/bin/env bash
# Score a day's file, report its labels, export the decision log. A second run changes nothing.
# Exit codes are those of turncoat. 75 also says that the day's file is not there yet.
set -euo pipefail

if (($# != 1)); then
  echo "usage: nightly.sh YYYY-MM-DD" >&2
  exit 2
fi
day=$1
model=${MODEL:-detector}
store=${STORE:-sqlite:///beliefs.sqlite}
inbox=${INBOX:-inbox}
results=${RESULTS:-results}
label_options=${LABEL_OPTIONS:-} # --all-fraud for a file of chargebacks without a label column

say_what_to_do() {
  case $1 in
    0) ;;
    75) echo "nightly: not possible now; run it again later" >&2 ;;
    *) echo "nightly: exit code $1 needs a person; the lines above say why" >&2 ;;
  esac
}
trap 'say_what_to_do $?' EXIT

if [[ ! -e $inbox/$day.csv ]]; then
  echo "nightly: there is no $inbox/$day.csv yet" >&2
  exit 75
fi

turncoat score "$model" "$inbox/$day.csv" --store "$store" --update --reasons above:0.05 \
  --run-id "nightly-$day" --out "$results/$day-scores.parquet" --json

if [[ -e $inbox/$day-labels.csv ]]; then
  turncoat labels "$model" "$inbox/$day-labels.csv" --store "$store" \
    --rejected "$results/$day-rejected.csv" --json $label_options
fi

turncoat export-log --store "$store" --out "$results/log.parquet" --json
