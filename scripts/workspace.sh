#!/bin/sh
# Writes go.work: all modules of this repository, with each one in the place of its own release version, because they require
# each other at a version that is not published while they are worked on. demo/go.work has the demo and what its go.mod
# requires, so that the first command of the README downloads no more than that.
set -eu
cd "$(dirname "$0")/.."
path=github.com/onceward/onceward
version="$(sed -n 's/^VERSION *?*= *//p' Makefile)"
modules="$(git ls-files --cached --others --exclude-standard | sed -n 's#^\(.*/\)\{0,1\}go\.mod$#./\1#p' | sed 's#/$##' | sort -u)"
unpublished='// The modules require each other at the version of the next release, which is not published yet.'
{
	sed -n 's/^go /go /p' go.mod
	printf '\nuse (\n'
	for dir in $modules; do printf '\t%s\n' "$dir"; done
	printf ')\n\n%s\nreplace (\n' "$unpublished"
	for dir in $modules; do
		case "$dir" in
		.) printf '\t%s %s => ./\n' "$path" "$version" ;;
		*) printf '\t%s %s => %s\n' "$path/${dir#./}" "$version" "$dir" ;;
		esac
	done
	printf ')\n'
} >go.work
[ -f demo/go.mod ] || exit 0
{
	sed -n 's/^go /go /p' go.mod
	printf '\nuse .\n\n%s\nreplace (\n' "$unpublished"
	sed -n "s#^\(require\)\{0,1\}[[:space:]]*\($path[^ ]*\) $version.*#\2#p" demo/go.mod | while read -r module; do
		printf '\t%s %s => ..%s\n' "$module" "$version" "${module#"$path"}"
	done
	printf ')\n'
} >demo/go.work
