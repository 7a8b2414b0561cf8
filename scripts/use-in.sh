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
git ls-files 'go.mod' '*/go.mod' | while read -r file; do
	folder=$(dirname "$file")
	module=$(sed -n 's/^module //p' "$file")
	case $module in
	*/lab | */lab/*) continue ;;
	esac
	(cd "$service" && go mod edit -replace "$module=$checkout/$folder")
done
echo "written to $service/go.mod; when your code imports Onceward, run there: go mod tidy"
