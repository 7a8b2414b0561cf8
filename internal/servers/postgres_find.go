package servers

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// postgresInstall is what a reader of the error can paste.
const postgresInstall = "apt-get update && apt-get install -y --no-install-recommends postgresql"

// postgresPrograms are the two programs that a private server needs.
type postgresPrograms struct{ initdb, postgres string }

// machine is how the programs are looked for, so that a test can look on a machine that lacks them.
type machine struct {
	pgConfig func() (bindir string, err error)
	lookPath func(program string) (string, error)
	glob     func(pattern string) ([]string, error)
}

func thisMachine() machine {
	return machine{
		pgConfig: func() (string, error) {
			out, err := exec.Command("pg_config", "--bindir").Output()
			return strings.TrimSpace(string(out)), err
		},
		lookPath: exec.LookPath,
		glob:     filepath.Glob,
	}
}

// findPostgres looks where the installation says that it is, then in the search path, then where Debian puts the programs,
// which is not in the search path because several versions may be installed; the newest is taken.
func findPostgres(m machine) (postgresPrograms, error) {
	var places []string
	if dir, err := m.pgConfig(); err == nil {
		places = append(places, dir)
	}
	if program, err := m.lookPath("initdb"); err == nil {
		places = append(places, filepath.Dir(program))
	}
	if program, err := m.lookPath("postgres"); err == nil {
		places = append(places, filepath.Dir(program))
	}
	versions, err := m.glob("/usr/lib/postgresql/*/bin")
	if err == nil {
		slices.SortFunc(versions, func(a, b string) int { return versionOf(b) - versionOf(a) })
		places = append(places, versions...)
	}
	for _, dir := range places {
		found := postgresPrograms{initdb: filepath.Join(dir, "initdb"), postgres: filepath.Join(dir, "postgres")}
		if isProgram(found.initdb) && isProgram(found.postgres) {
			return found, nil
		}
	}
	return postgresPrograms{}, fmt.Errorf("the tests need PostgreSQL's initdb and postgres, which are not installed here. "+
		"`make test` installs them where it can; on Debian or Ubuntu, as root:\n\n    %s\n\n"+
		"Or name a server that is already there in %s", postgresInstall, postgresVariable)
}

// versionOf reads the version out of /usr/lib/postgresql/17/bin; an old one like 9.6 counts as zero.
func versionOf(bindir string) int {
	version, _ := strconv.Atoi(filepath.Base(filepath.Dir(bindir)))
	return version
}

func isProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

// postgresOwner is who the server runs as: PostgreSQL refuses to run as root, so root's tests run it as the user that its
// package creates.
func postgresOwner() (owner, error) {
	if os.Getuid() != 0 {
		return owner{}, nil
	}
	found, err := user.Lookup("postgres")
	if err != nil {
		return owner{}, fmt.Errorf("PostgreSQL does not run as root and there is no user for it: %w. "+
			"The package creates the user:\n\n    %s", err, postgresInstall)
	}
	uid, err := strconv.Atoi(found.Uid)
	if err != nil {
		return owner{}, err
	}
	gid, err := strconv.Atoi(found.Gid)
	return owner{uid: uid, gid: gid, other: true}, err
}
