package servers

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/onceward/onceward/internal/proc"
)

// These commands install a server. Errors show them.
const (
	postgresInstall = "apt-get update && apt-get install -y --no-install-recommends postgresql"
	rabbitmqInstall = "apt-get update && apt-get install -y --no-install-recommends rabbitmq-server"
	redisInstall    = "apt-get update && apt-get install -y --no-install-recommends redis-server"
	mariadbInstall  = "apt-get update && apt-get install -y --no-install-recommends mariadb-server"
	galeraInstall   = "apt-get update && apt-get install -y --no-install-recommends mariadb-server galera-4 rsync"
	npmInstall      = "apt-get update && apt-get install -y --no-install-recommends npm"
	patroniInstall  = "apt-get update && apt-get install -y --no-install-recommends postgresql patroni etcd-server"

	pgbouncerInstall  = "apt-get update && apt-get install -y --no-install-recommends postgresql pgbouncer"
	prometheusInstall = "apt-get update && apt-get install -y --no-install-recommends prometheus"
)

// postgresPrograms are the programs for a private server. An existing server only needs psql.
type postgresPrograms struct{ initdb, postgres, psql string }

// rabbitmqPrograms are the programs for a private broker: its start script,
// and Erlang's epmd, by which Erlang nodes find each other's ports.
type rabbitmqPrograms struct{ server, epmd string }

// machine contains the functions that look for programs, so that a test can simulate a machine without them.
type machine struct {
	// postgresBin is the directory in ONCEWARD_TEST_POSTGRES_BIN; empty if it is not set.
	postgresBin string

	pgConfig func() (bindir string, err error)
	lookPath func(program string) (string, error)
	glob     func(pattern string) ([]string, error)
}

func thisMachine() machine {
	return machine{
		postgresBin: os.Getenv(postgresBinVariable),
		pgConfig: func() (string, error) {
			out, err := exec.Command("pg_config", "--bindir").Output()
			return strings.TrimSpace(string(out)), err
		},
		lookPath: exec.LookPath,
		glob:     filepath.Glob,
	}
}

// findPostgres finds the programs for a private server. If a directory is set, only that
// directory is used, so that no test passes with another version than the required one.
func findPostgres(m machine) (postgresPrograms, error) {
	if m.postgresBin != "" {
		return findPostgresIn(m, m.postgresBin)
	}
	dir, found := m.postgresDir("initdb", "postgres", "psql")
	if !found {
		return postgresPrograms{}, fmt.Errorf("the tests need PostgreSQL's initdb, postgres and psql, which are not "+
			"installed here. "+
			"`make test` installs them where it can; on Debian or Ubuntu, as root:\n\n    %s\n\n"+
			"Or name a server that is already there in %s", postgresInstall, postgresVariable)
	}
	at := func(program string) string { return filepath.Join(dir, program) }
	return postgresPrograms{initdb: at("initdb"), postgres: at("postgres"), psql: at("psql")}, nil
}

// findPostgresIn finds the server in a directory. Not every collection of binaries has a client: any client will do.
func findPostgresIn(m machine, dir string) (postgresPrograms, error) {
	found := postgresPrograms{initdb: filepath.Join(dir, "initdb"), postgres: filepath.Join(dir, "postgres")}
	if !isProgram(found.initdb) || !isProgram(found.postgres) {
		return postgresPrograms{}, fmt.Errorf("%s names %s, where PostgreSQL's initdb and postgres are not",
			postgresBinVariable, dir)
	}
	var err error
	found.psql, err = findPsql(m)
	return found, err
}

// findPsql finds the client for an existing server.
func findPsql(m machine) (string, error) {
	dir, found := m.postgresDir("psql")
	if !found {
		return "", errors.New("the tests need PostgreSQL's psql, which is not installed here. " +
			"On Debian or Ubuntu, as root:\n\n" +
			"    apt-get update && apt-get install -y --no-install-recommends postgresql-client")
	}
	return filepath.Join(dir, "psql"), nil
}

// postgresDir finds a directory with all of the programs. It looks in the directory that
// pg_config reports, then in the search path, then where Debian puts the programs. That place
// is not in the search path because several versions may be installed; the newest is used.
func (m machine) postgresDir(programs ...string) (dir string, found bool) {
	var places []string
	if dir, err := m.pgConfig(); err == nil {
		places = append(places, dir)
	}
	for _, program := range programs {
		if path, err := m.lookPath(program); err == nil {
			places = append(places, filepath.Dir(path))
		}
	}
	if versions, err := m.glob("/usr/lib/postgresql/*/bin"); err == nil {
		places = append(places, newestFirst(versions)...)
	}
	hasAll := func(dir string) bool {
		return !slices.ContainsFunc(programs, func(program string) bool { return !isProgram(filepath.Join(dir, program)) })
	}
	i := slices.IndexFunc(places, hasAll)
	if i < 0 {
		return "", false
	}
	return places[i], true
}

// findRabbitMQ looks where Debian puts the script, the newest version first, then in the search path. The order
// matters: Debian's program in the search path is a wrapper that changes the user and the place of all files.
func findRabbitMQ(m machine) (rabbitmqPrograms, error) {
	places, err := m.glob("/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server")
	if err == nil {
		places = newestFirst(places)
	}
	if program, err := m.lookPath("rabbitmq-server"); err == nil {
		places = append(places, program)
	}
	epmd, err := m.lookPath("epmd")
	for _, server := range places {
		if err == nil && isProgram(server) {
			return rabbitmqPrograms{server: server, epmd: epmd}, nil
		}
	}
	return rabbitmqPrograms{}, fmt.Errorf("the tests need RabbitMQ's rabbitmq-server and Erlang's epmd, which are not "+
		"installed here. "+
		"`make test` installs them where it can; on Debian or Ubuntu, as root:\n\n    %s\n\n"+
		"Or name a broker that is already there in %s", rabbitmqInstall, rabbitmqVariable)
}

// findRedis finds the server in the search path. The same program is the sentinel.
func findRedis(m machine) (program string, err error) {
	if program, err = m.lookPath("redis-server"); err != nil {
		return "", fmt.Errorf("the tests need Redis' redis-server, which is not installed here. "+
			"`make test` installs it where it can; on Debian or Ubuntu, as root:\n\n    %s\n\n"+
			"Or name a server that is already there in %s", redisInstall, redisVariable)
	}
	return program, nil
}

// mariadbPrograms are the server, the program that creates its
// data, and the client. An existing server only needs the client.
type mariadbPrograms struct{ server, install, client string }

// findMariaDB looks for the programs in the search path and where
// Debian puts a server, which is only in root's search path.
func findMariaDB(m machine) (found mariadbPrograms, err error) {
	for program, path := range map[string]*string{
		"mariadbd": &found.server, "mariadb-install-db": &found.install, "mariadb": &found.client,
	} {
		if *path, err = lookInSbin(m, program); err != nil {
			return found, fmt.Errorf("the tests need MariaDB's %s, which is not installed here. "+
				"`make test` installs it where it can; on Debian or Ubuntu, as root:\n\n    %s\n\n"+
				"Or name a server that is already there in %s", program, mariadbInstall, mariadbVariable)
		}
	}
	return found, nil
}

// findGalera finds the library that makes MariaDB a node of a cluster.
func findGalera(m machine) (provider string, err error) {
	_, err = m.lookPath("rsync")
	for _, pattern := range []string{"/usr/lib/galera/libgalera_smm.so", "/usr/lib*/galera-4/libgalera_smm.so"} {
		found, globErr := m.glob(pattern)
		if err == nil && globErr == nil && len(found) > 0 {
			return found[0], nil
		}
	}
	return "", fmt.Errorf("the tests need Galera's libgalera_smm.so and rsync, which are not installed here. "+
		"On Debian or Ubuntu, as root:\n\n    %s", galeraInstall)
}

// patroniPrograms are the programs of PostgreSQL, Patroni, which makes one
// of several servers the primary, and etcd, where Patroni stores which one.
type patroniPrograms struct {
	postgresPrograms
	patroni, etcd string
}

// findPatroni finds the programs in the search path, and PostgreSQL as findPostgres does.
func findPatroni(m machine) (found patroniPrograms, err error) {
	if found.postgresPrograms, err = findPostgres(m); err != nil {
		return found, err
	}
	var etcdErr error
	found.patroni, err = m.lookPath("patroni")
	found.etcd, etcdErr = m.lookPath("etcd")
	if err = errors.Join(err, etcdErr); err != nil {
		return found, fmt.Errorf("the tests need Patroni and etcd, which are not installed here (%w). "+
			"On Debian or Ubuntu, as root:\n\n    %s", err, patroniInstall)
	}
	return found, nil
}

// findPgBouncer looks for the pooler in the search path and where Debian puts it.
func findPgBouncer(m machine) (program string, err error) {
	if program, err = lookInSbin(m, "pgbouncer"); err != nil {
		return "", fmt.Errorf("the tests need PgBouncer, which is not installed here. "+
			"On Debian or Ubuntu, as root:\n\n    %s", pgbouncerInstall)
	}
	return program, nil
}

// lookInSbin looks for a program in the search path, and in the directories for administrators' programs.
func lookInSbin(m machine, program string) (string, error) {
	path, err := m.lookPath(program)
	if err == nil {
		return path, nil
	}
	if found, globErr := m.glob("/usr/sbin/" + program); globErr == nil && len(found) > 0 {
		return found[0], nil
	}
	return "", err
}

// prometheusPrograms are the server, and the program that checks its files.
type prometheusPrograms struct{ server, promtool string }

// findPrometheus looks for the programs in the search path.
func findPrometheus(m machine) (found prometheusPrograms, err error) {
	found.server, err = m.lookPath("prometheus")
	promtool, promtoolErr := m.lookPath("promtool")
	found.promtool = promtool
	if err = errors.Join(err, promtoolErr); err != nil {
		return found, fmt.Errorf("the tests need Prometheus' prometheus and promtool, which are not installed here. "+
			"`make test` installs them where it can; on Debian or Ubuntu, as root:\n\n    %s", prometheusInstall)
	}
	return found, nil
}

// newestFirst sorts paths by the versions in them.
func newestFirst(paths []string) []string {
	return slices.SortedFunc(slices.Values(paths),
		func(a, b string) int { return slices.Compare(versionIn(b), versionIn(a)) })
}

// versionIn returns the numbers in a path, in order. As text, 3.9 would be newer than 3.12.
func versionIn(path string) (numbers []int) {
	for part := range strings.FieldsFuncSeq(path, func(r rune) bool { return r < '0' || r > '9' }) {
		number, _ := strconv.Atoi(part) // a number that is too large becomes the largest
		numbers = append(numbers, number)
	}
	return numbers
}

func isProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

// owner is the user that a server runs as. The zero value is the user of this process.
type owner struct {
	uid, gid int
	other    bool
}

// serverOwner returns the user that a server runs as. PostgreSQL refuses to run as root and
// RabbitMQ should not, so that tests of root run each server as the user that its package creates.
func serverOwner(name, install string) (owner, error) {
	if os.Getuid() != 0 {
		return owner{}, nil
	}
	found, err := user.Lookup(name)
	if err != nil {
		return owner{}, fmt.Errorf("a server does not run as root, and there is no other user for it: %w. "+
			"The package creates the user:\n\n    %s", err, install)
	}
	uid, err := strconv.Atoi(found.Uid)
	if err != nil {
		return owner{}, err
	}
	gid, err := strconv.Atoi(found.Gid)
	return owner{uid: uid, gid: gid, other: true}, err
}

// runs makes a command run as the owner.
func (o owner) runs(cmd *exec.Cmd) {
	if o.other {
		proc.RunAs(cmd, o.uid, o.gid)
	}
}
