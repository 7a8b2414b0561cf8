#!/bin/sh
# Runs a go command in store/postgres with the oldest release of pgx that it supports, by a go.mod that is made for it and removed
# again:
#
#	sh scripts/with-oldest-pgx.sh test ./...
#
# GO names the go command. The number stands in docs/dependencies.md and docs/postgresql.md too.
set -eu
oldest=v5.8.0
go=${GO:-go}

root="$(cd "$(dirname "$0")/.." && pwd)"
path=github.com/onceward/onceward
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$root/store/postgres"
cp go.mod "$dir/oldest.mod"
cp go.sum "$dir/oldest.sum"
# What pgx itself needs is taken as old as that release asks for. The other modules of this repository are taken as they lie here.
"$go" mod edit -require="github.com/jackc/pgx/v5@$oldest" -droprequire=github.com/jackc/puddle/v2 \
	-replace="$path=$root" -replace="$path/store/storetest=$root/store/storetest" "$dir/oldest.mod"
command=$1
shift
echo "$go $command $* in store/postgres (with pgx $oldest)"
GOWORK=off "$go" "$command" -modfile="$dir/oldest.mod" -mod=mod "$@"
