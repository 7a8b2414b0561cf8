#!/bin/sh
# Makes targets one after the other and says which one is being made, how many there are and how long it has taken so
# far:
#
#	MAKE=make sh scripts/steps.sh needs/compile vet staticcheck
#
# Of needs/compile, compile is made in silence while needs is made, and ended with it: it only uses the time in which
# packages are downloaded. BUDGET says in how much time all of them are meant to be made.
set -eu
started=$(date +%s)
step=0
for target in "$@"; do
	step=$((step + 1))
	beside=
	case $target in */*)
		"${MAKE:-make}" --no-print-directory "${target#*/}" >/dev/null 2>&1 &
		beside=$!
		target=${target%/*}
		;;
	esac
	echo "== $step/$# $target ($(($(date +%s) - started)) s so far)"
	status=0
	"${MAKE:-make}" --no-print-directory "$target" || status=$?
	if [ -n "$beside" ]; then
		kill "$beside" 2>/dev/null || true
		wait "$beside" 2>/dev/null || true
	fi
	[ "$status" -eq 0 ] || exit "$status"
done
echo "== done: $# steps in $(($(date +%s) - started)) s${BUDGET:+ (budget: $BUDGET)}"
