#!/bin/sh
# Runs a go command in the workspace of this repository, with the oldest release of each dependency that a module of users supports:
#
#	sh scripts/with-oldest.sh test ./adapter/gin ./lab/feature/routers
#
# That is the release which the module's go.mod requires. go.work has newer ones, because lab and the programs require the newest. GO
# names the go command.
set -eu
go=${GO:-go}
root="$(cd "$(dirname "$0")/.." && pwd)"
cd "$root"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
{
	sed -e "s#^\t\.#\t$root#" -e "s#=> \.#=> $root#" go.work
	# Of a dependency of several modules, the newest that one of them requires.
	git ls-files go.mod '*/go.mod' | grep -v '^\(lab\|demo\|cmd\|examples\)/' | xargs sed -n 's#^\(\t\|require \)\([^ ]*\) \(v[^ ]*\).*#\2 \3#p' |
		grep -v '^github.com/onceward/' | sort -k1,1 -k2,2V |
		awk '{ oldest[$1] = $2 } END { for (path in oldest) print "replace " path " => " path " " oldest[path] }'
} >"$dir/go.work"
cp go.work.sum "$dir/go.work.sum"
echo "$go $* (with the oldest dependencies)"
GOWORK="$dir/go.work" "$go" "$@"
