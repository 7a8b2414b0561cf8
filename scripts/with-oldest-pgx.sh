#!/bin/sh
# Runs a go command in store/postgres with the oldest release of pgx that it supports:
#
#	sh scripts/with-oldest-pgx.sh test .
#
# That is the release which store/postgres/go.mod requires. go.work has a newer one, because lab requires the newest: so this is a
# workspace of the modules that a user of the store gets, and of no other. GO names the go command.
set -eu
go=${GO:-go}

root="$(cd "$(dirname "$0")/.." && pwd)"
path=github.com/onceward/onceward
version="$(sed -n 's/^VERSION *?= *//p' "$root/Makefile")"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
{
	sed -n 's/^go /go /p' "$root/go.mod"
	for module in "" /store/postgres /store/storetest; do
		printf 'use %s\nreplace %s %s => %s\n' "$root$module" "$path$module" "$version" "$root$module"
	done
} >"$dir/go.work"
export GOWORK="$dir/go.work"
cd "$root/store/postgres"
echo "$go $* in store/postgres (with $("$go" list -m github.com/jackc/pgx/v5))"
"$go" "$@"
