#!/bin/sh
# Lets the module in a directory use this checkout: writes one replace line for each module of Onceward into its go.mod.
# Lines for modules that it does not use change nothing. It is for as long as there is no release.
set -eu
if [ $# -ne 1 ] || [ ! -f "$1/go.mod" ]; then
	echo "usage: $0 DIR, where DIR has the go.mod of your service" >&2
	exit 2
fi
service=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
checkout=$(pwd)
modules=$(git ls-files 'go.mod' '*/go.mod' | while read -r file; do
	case $file in
	lab/* | demo/* | cmd/* | examples/*) continue ;;
	esac
	echo "$(sed -n 's/^module //p' "$file") => $checkout/$(dirname "$file")"
done)
cd "$service"
echo "$modules" | while read -r module _; do
	go mod edit -dropreplace "$module"
done
printf '\nreplace (\n%s\n)\n' "$modules" >>go.mod
go mod edit -fmt
echo "written to $service/go.mod; when your code imports Onceward, run there: go mod tidy"
