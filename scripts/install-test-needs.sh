#!/bin/sh
# Makes sure that the machine has what the tests need beside Go and make, and installs it where it can.
#
# The product is pure Go and needs none of this. Each need is one line at the end of this file: that is the place to add
# a server for a new store.
#
#	sh scripts/install-test-needs.sh [engines]
#
# With "engines" it is also what only the groups of servers need: Galera, Patroni and etcd. `make test` does not.
set -eu

# need DESCRIPTION CHECK PACKAGE... installs the Debian packages unless the check succeeds, and checks again.
need() {
	description=$1
	check=$2
	shift 2
	if "$check"; then
		return 0
	fi
	echo "missing: $description"
	install_packages "$@" || give_up "$description" "$@"
	"$check" || give_up "$description" "$@"
}

install_packages() {
	command -v apt-get >/dev/null 2>&1 || return 1
	if [ "$(id -u)" -eq 0 ]; then
		as_root=
	elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
		as_root=sudo
	else
		return 1
	fi
	echo "installing: $*"
	$as_root apt-get update -qq || return 1
	$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
}

give_up() {
	description=$1
	shift
	cat >&2 <<-END
		The tests need $description.
		It could not be installed from here. On Debian or Ubuntu, as root:

		    apt-get update && apt-get install -y --no-install-recommends $*

		On another system, install what corresponds to these packages: $*.
		Then run make again.
	END
	exit 1
}

# A compiler without the headers of the C library is no use, so the check compiles and links something.
can_compile_c() {
	compiler=$(go env CC)
	scratch=$(mktemp -d)
	printf '#include <stdlib.h>\nint main(void) { return EXIT_SUCCESS; }\n' >"$scratch/main.c"
	result=0
	# CC may carry flags, as in "ccache gcc": it is split into words on purpose.
	# shellcheck disable=SC2086
	(cd "$scratch" && ${compiler:-gcc} -pthread -o main main.c) >/dev/null 2>&1 || result=1
	rm -rf "$scratch"
	return $result
}

# The server's programs are often not in the search path. These are the places where internal/servers looks for them.
# PostgreSQL does not run as root, so root's tests need the user that the package creates.
can_run_postgres() {
	if [ "$(id -u)" -eq 0 ]; then
		id postgres >/dev/null 2>&1 || return 1
	fi
	configured=$(pg_config --bindir 2>/dev/null || true)
	in_path=$(command -v postgres 2>/dev/null || true)
	for dir in "$configured" "${in_path%/*}" /usr/lib/postgresql/*/bin; do
		if [ -x "$dir/initdb" ] && [ -x "$dir/postgres" ]; then
			return 0
		fi
	done
	return 1
}

# Debian's rabbitmq-server in the search path changes the user by itself; the script behind it does not, and comes first.
# Root's tests run the broker as the user that the package creates. Erlang brings epmd.
can_run_rabbitmq() {
	if [ "$(id -u)" -eq 0 ]; then
		id rabbitmq >/dev/null 2>&1 || return 1
	fi
	command -v epmd >/dev/null 2>&1 || return 1
	for program in /usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server "$(command -v rabbitmq-server 2>/dev/null || true)"; do
		if [ -x "$program" ]; then
			return 0
		fi
	done
	return 1
}

# The same program is the server, a node of a cluster and the sentinel.
can_run_redis() {
	command -v redis-server >/dev/null 2>&1
}

can_run_pgbouncer() {
	command -v pgbouncer >/dev/null 2>&1 || [ -x /usr/sbin/pgbouncer ]
}

# Debian's package brings both; promtool checks the files of the alerts.
can_run_prometheus() {
	command -v prometheus >/dev/null 2>&1 && command -v promtool >/dev/null 2>&1
}

# A server's program is often not in the search path of others than root. Root's tests run it as the user that the
# package creates.
can_run_mariadb() {
	if [ "$(id -u)" -eq 0 ]; then
		id mysql >/dev/null 2>&1 || return 1
	fi
	command -v mariadbd >/dev/null 2>&1 || [ -x /usr/sbin/mariadbd ] || return 1
	command -v mariadb-install-db >/dev/null 2>&1 && command -v mariadb >/dev/null 2>&1
}

# npm fetches Dynoxide, unless one is named.
can_run_dynoxide() {
	[ -n "${ONCEWARD_TEST_DYNOXIDE:-}${ONCEWARD_TEST_DYNAMODB:-}" ] || command -v npm >/dev/null 2>&1
}

# Galera is a library of MariaDB's server, whose nodes copy data by rsync.
can_run_galera() {
	command -v rsync >/dev/null 2>&1 || return 1
	for library in /usr/lib/galera/libgalera_smm.so /usr/lib*/galera-4/libgalera_smm.so; do
		if [ -e "$library" ]; then
			return 0
		fi
	done
	return 1
}

can_run_patroni() {
	command -v patroni >/dev/null 2>&1 && command -v etcd >/dev/null 2>&1
}

command -v go >/dev/null 2>&1 || {
	echo "The tests need Go (see the version in go.mod): https://go.dev/dl/" >&2
	exit 1
}

# What the tests need. Installing a server may also start one, which the tests do not use: they start their own.
need "a C compiler and the C library's headers, for 'go test -race'" can_compile_c gcc libc6-dev
need "PostgreSQL's programs, to start a server for the tests" can_run_postgres postgresql
need "RabbitMQ and Erlang's epmd, to start a broker for the tests" can_run_rabbitmq rabbitmq-server
need "Redis, to start servers for the tests" can_run_redis redis-server
need "PgBouncer, to put a pooler before a server of the tests" can_run_pgbouncer pgbouncer
need "Prometheus and promtool, to scrape metrics and to check alerts" can_run_prometheus prometheus
need "MariaDB, to start servers for the tests" can_run_mariadb mariadb-server
need "npm, to fetch Dynoxide, which speaks DynamoDB's protocol" can_run_dynoxide npm
if [ "${1:-}" = engines ]; then
	need "Galera and rsync, to start a cluster of MariaDB" can_run_galera galera-4 rsync
	need "Patroni and etcd, to start PostgreSQL servers that replace each other" can_run_patroni patroni etcd-server
fi
