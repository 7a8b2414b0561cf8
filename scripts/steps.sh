#!/bin/sh
# Makes targets one after the other and says which one is being made, how many there are and how long it has taken so
# far:
#
#	MAKE=make sh scripts/steps.sh vet staticcheck
#
# BUDGET says in how much time all of them are meant to be made.
set -eu
started=$(date +%s)
step=0
for target in "$@"; do
	step=$((step + 1))
	echo "== $step/$# $target ($(($(date +%s) - started)) s so far)"
	"${MAKE:-make}" --no-print-directory "$target"
done
echo "== done: $# steps in $(($(date +%s) - started)) s${BUDGET:+ (budget: $BUDGET)}"
