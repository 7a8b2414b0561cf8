#!/bin/sh
# Runs a go command with the oldest release of pgx that store/postgres supports, by a go.mod that is made for it and removed again:
#
#	sh scripts/with-oldest-pgx.sh test ./store/postgres
#
# GO names the go command. The number stands in docs/dependencies.md and docs/postgresql.md too.
set -eu
oldest=v5.8.0
go=${GO:-go}

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cp go.mod "$dir/oldest.mod"
cp go.sum "$dir/oldest.sum"
# What pgx itself needs is taken as old as that release asks for.
"$go" mod edit -require="github.com/jackc/pgx/v5@$oldest" -droprequire=github.com/jackc/puddle/v2 "$dir/oldest.mod"
command=$1
shift
echo "$go $command $* (with pgx $oldest)"
"$go" "$command" -modfile="$dir/oldest.mod" -mod=mod "$@"
