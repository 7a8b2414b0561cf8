package servers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// mariadbVariable names the environment variable that holds the URL of a server to use instead of starting one.
const mariadbVariable = "ONCEWARD_TEST_MARIADB"

// MariaDBServer is a running MariaDB, or one of the nodes of a Galera cluster. All of its methods can be called at the
// same time.
type MariaDBServer struct {
	server
	programs mariadbPrograms
	settings []string
	port     int
	// node is what makes it one of a cluster; nil if it is alone.
	node *galeraNode
}

// StartMariaDB starts a private server with an empty database. Each setting is one of MariaDB's, as in
// "lock-wait-timeout=5"; what is not set is as a careful operator would have it: each commit is on disk before it is
// acknowledged. The context limits the start only. Close it when done.
func StartMariaDB(ctx context.Context, settings ...string) (*MariaDBServer, error) {
	s, err := newMariaDB(ctx, "MariaDB", settings)
	if err != nil {
		return nil, err
	}
	if err := s.startSomewhere(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// newMariaDB is a server that does not run yet, with data of its own.
func newMariaDB(ctx context.Context, kind string, settings []string) (*MariaDBServer, error) {
	programs, err := findMariaDB(thisMachine())
	if err != nil {
		return nil, err
	}
	as, err := serverOwner("mysql", mariadbInstall)
	if err != nil {
		return nil, err
	}
	dir, err := mariadbTemplate.newDir(as, func(dir string) error { return initMariaDB(ctx, programs, as, dir) })
	if err != nil {
		return nil, fmt.Errorf("servers: create a %s: %w", kind, err)
	}
	s := &MariaDBServer{programs: programs, settings: settings}
	s.kind, s.dir, s.as, s.life = kind, dir, as, s
	enlist(s)
	return s, nil
}

// mariadbTemplate is an empty database that is copied for each server.
var mariadbTemplate = template{name: "mariadb"}

// mariadbDatabase is the database that a new server has for its users.
const mariadbDatabase = "test"

// initMariaDB makes the data directory of a server.
func initMariaDB(ctx context.Context, programs mariadbPrograms, as owner, dir string) error {
	if err := as.makeDir(dir); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, programs.install, "--no-defaults", "--datadir="+dir, "--skip-test-db",
		"--auth-root-authentication-method=normal", "--skip-name-resolve", "--innodb-log-file-size=16M")
	cmd.Dir, cmd.Env = dir, mariadbEnviron(dir)
	as.runs(cmd)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", programs.install, err, out)
	}
	database := filepath.Join(dir, mariadbDatabase) // to the server, a directory is a database
	return as.makeDir(database)
}

// mariadbEnviron is ours without what would change the server or a client. Our directory for temporary files may be
// closed to the user that the server runs as.
func mariadbEnviron(home string) []string {
	return append(cleanEnviron("MYSQL_", "MARIADB_", "LC_", "TMPDIR="), "HOME="+home, "TMPDIR="+home, "LC_ALL=C")
}

// choosePorts finds a port to listen on.
func (s *MariaDBServer) choosePorts() (err error) {
	s.port, err = freePort()
	s.url = fmt.Sprintf("mysql://root@127.0.0.1:%d/%s", s.port, mariadbDatabase)
	return err
}

// start runs the server on its port and waits until it accepts connections.
func (s *MariaDBServer) start(ctx context.Context) (err error) {
	if s.node != nil && s.node.position == "" {
		if s.node.position, err = s.recoverPosition(ctx); err != nil {
			return err
		}
	}
	args := append(s.arguments(), s.settings...)
	cmd := exec.Command(s.programs.server, dashed(args)...)
	if s.proc, err = s.run(cmd, mariadbEnviron(s.dir), syscall.SIGKILL); err != nil {
		return fmt.Errorf("servers: start %s: %w", s.kind, err)
	}
	if s.node != nil {
		s.node.position = ""
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if err = s.awaitReady(ctx); err != nil {
		return errors.Join(s.startFailure(err), s.kill())
	}
	return nil
}

// dashed are settings as arguments; --no-defaults has to be the first.
func dashed(settings []string) []string {
	args := []string{"--no-defaults"}
	for _, each := range settings {
		args = append(args, "--"+each)
	}
	return args
}

// arguments are the settings; one that comes later wins. A host whose connections are cut too often would be locked
// out, which is what faults do. A server that starts removes the temporary tables that it finds, also those of others
// that use the same directory.
func (s *MariaDBServer) arguments() []string {
	settings := []string{
		"datadir=" + s.Dir(), "port=" + strconv.Itoa(s.port), "bind-address=127.0.0.1",
		"socket=" + filepath.Join(s.dir, "socket"), "pid-file=" + s.pidFile(), "tmpdir=" + s.dir, "skip-name-resolve",
		"max-connections=300", "max-connect-errors=4294967295",
		"innodb-flush-log-at-trx-commit=1", "innodb-log-file-size=16M", "innodb-buffer-pool-size=128M",
		"character-set-server=utf8mb4",
	}
	if s.node == nil {
		return append(settings, "skip-log-bin")
	}
	return append(settings, s.node.arguments()...)
}

// Dir is where the server keeps its data; empty if it was not started here.
func (s *MariaDBServer) Dir() string {
	if s.dir == "" {
		return ""
	}
	return filepath.Join(s.dir, "data")
}

func (s *MariaDBServer) pidFile() string { return filepath.Join(s.dir, "pid") }

// Addr is the host and the port that clients connect to.
func (s *MariaDBServer) Addr() string {
	parsed, err := url.Parse(s.url)
	if err != nil {
		return ""
	}
	return parsed.Host
}

// DSN is where a database of the server is, in the form of the driver go-sql-driver/mysql.
func (s *MariaDBServer) DSN(database string) string {
	parsed, err := url.Parse(s.url)
	if err != nil {
		return ""
	}
	user := parsed.User.Username()
	if password, ok := parsed.User.Password(); ok {
		user += ":" + password
	}
	return user + "@tcp(" + parsed.Host + ")/" + database
}

// awaitReady waits until the process has said that it runs, so that another one that has taken the port is not mistaken
// for it, and greets.
func (s *MariaDBServer) awaitReady(ctx context.Context) error {
	pid := strconv.Itoa(s.proc.PID())
	return await(ctx, s.kind+" answers", func() (bool, error) {
		if s.proc.Ended() {
			return true, errors.New("it has ended")
		}
		text, err := os.ReadFile(s.pidFile())
		return err == nil && strings.TrimSpace(string(text)) == pid && s.greets(ctx), nil
	})
}

// greets says whether the server lets a session begin: its first packet is a greeting then, and else an error.
func (s *MariaDBServer) greets(ctx context.Context) bool {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", s.Addr())
	if err != nil {
		return false
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return false
	}
	packet, err := readMySQLPacket(bufio.NewReader(conn))
	return err == nil && packet.kind() == mysqlGreeting
}

// Exec runs statements on a connection of its own, one after the other.
func (s *MariaDBServer) Exec(ctx context.Context, sql string) error {
	_, err := s.Query(ctx, sql)
	return err
}

// Query runs statements like Exec, and returns all rows, as text: a line each, with a tab between the columns. It runs
// the client, so that this package needs no driver. A process costs some ten milliseconds: a test that asks often uses
// a driver.
func (s *MariaDBServer) Query(ctx context.Context, sql string) (string, error) {
	parsed, err := url.Parse(s.url)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, s.programs.client, "--no-defaults", "--protocol=tcp", "--host="+parsed.Hostname(),
		"--port="+parsed.Port(), "--user="+parsed.User.Username(), "--skip-column-names", "--batch",
		"--database="+strings.TrimPrefix(parsed.Path, "/"))
	cmd.Env = mariadbEnviron(os.TempDir())
	if password, ok := parsed.User.Password(); ok { // all users of a machine see the arguments of a process
		cmd.Env = append(cmd.Env, "MYSQL_PWD="+password)
	}
	var said strings.Builder
	cmd.Stdin, cmd.Stderr, cmd.WaitDelay = strings.NewReader(sql), &said, time.Second
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("mariadb: %w: %s", errors.Join(err, ctx.Err()), strings.TrimSpace(said.String()))
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}

// Runs says whether the server was started here and neither killed nor stopped since.
func (s *MariaDBServer) Runs() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc != nil && !s.proc.Ended()
}

// stop shuts the server down in order.
func (s *MariaDBServer) stop() error {
	if s.proc == nil {
		return nil
	}
	if err := s.stopBy(syscall.SIGTERM); err != nil {
		return errors.Join(err, s.kill())
	}
	s.proc = nil
	return nil
}

// end is kill: a server leaves nothing outside of its directory.
func (s *MariaDBServer) end() error { return s.kill() }

// kill kills what runs, with what it has started to copy its data to another node, if there is that.
func (s *MariaDBServer) kill() error {
	running := s.proc
	s.proc = nil
	if running == nil || running.Ended() {
		return nil
	}
	return running.KillTree()
}
