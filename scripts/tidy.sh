#!/bin/sh
# Tidies the go.mod of every module of this repository. The modules require each other at the release version, which is not
# published while they are worked on: they are replaced by their directories for as long as `go mod tidy` runs. That version
# alone is replaced, and nothing is required beforehand: so a module gets the siblings that it imports, and no version of a
# dependency that only another sibling asks for.
set -eu
cd "$(dirname "$0")/.."
GO="${GO:-go}"
path=github.com/onceward/onceward
version="$(sed -n 's/^VERSION *?*= *//p' Makefile)"
modules="$(git ls-files --cached --others --exclude-standard | sed -n 's#^\(.*/\)\{0,1\}go\.mod$#./\1#p' | sed 's#/$##' | sort -u)"

name() { [ "$1" = . ] && echo "$path" || echo "$path/${1#./}"; }

for dir in $modules; do
	set --
	for other in $modules; do
		[ "$other" = "$dir" ] || set -- "$@" "-replace=$(name "$other")@$version=$PWD/${other#./}"
	done
	echo "tidy $(name "$dir")"
	(
		cd "$dir"
		cp go.mod go.mod.before
		trap 'mv go.mod.before go.mod' EXIT
		"$GO" mod edit "$@"
		GOWORK=off GOFLAGS=-mod=mod "$GO" mod tidy
		set --
		for other in $modules; do
			set -- "$@" "-dropreplace=$(name "$other")@$version"
		done
		"$GO" mod edit "$@"
		trap - EXIT
		rm go.mod.before
	)
done
