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

// mariadbVariable is the environment variable with the URL of a server to use instead of starting one.
const mariadbVariable = "ONCEWARD_TEST_MARIADB"

// MariaDBServer is a running MariaDB, or a node of a Galera cluster. It is safe for concurrent use.
type MariaDBServer struct {
	server
	programs mariadbPrograms
	settings []string
	port     int
	// node makes the server a node of a cluster; nil if it is alone.
	node *galeraNode
}

// StartMariaDB starts a private server with an empty database. Each setting is a setting of MariaDB, as
// in "lock-wait-timeout=5". Other settings are as a careful operator would choose them: each commit is
// on disk before it is acknowledged. The context only limits the start. The caller closes the server.
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

// newMariaDB returns a server that is not running yet, with its own data.
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

// mariadbTemplate is an empty database, which is copied for each server.
var mariadbTemplate = template{name: "mariadb"}

// mariadbDatabase is the database that a new server has for its users.
const mariadbDatabase = "test"

// initMariaDB creates the data directory of a server.
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

// mariadbEnviron returns our environment without variables that would change the server or
// a client. Our directory for temporary files may not be accessible to the server's user.
func mariadbEnviron(home string) []string {
	return append(cleanEnviron("MYSQL_", "MARIADB_", "LC_", "TMPDIR="), "HOME="+home, "TMPDIR="+home, "LC_ALL=C")
}

// choosePorts chooses a port.
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

// dashed returns settings as arguments; --no-defaults must be the first.
func dashed(settings []string) []string {
	args := []string{"--no-defaults"}
	for _, each := range settings {
		args = append(args, "--"+each)
	}
	return args
}

// arguments returns the settings; later settings take precedence. The server must not lock out a
// host whose connections are cut too often, because faults do that. The server has its own temporary
// directory: at its start, a server removes the temporary tables of others in the same directory.
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

// Dir returns the server's data directory; empty if the server was not started here.
func (s *MariaDBServer) Dir() string {
	if s.dir == "" {
		return ""
	}
	return filepath.Join(s.dir, "data")
}

func (s *MariaDBServer) pidFile() string { return filepath.Join(s.dir, "pid") }

// Addr returns the host and the port for clients.
func (s *MariaDBServer) Addr() string {
	parsed, err := url.Parse(s.url)
	if err != nil {
		return ""
	}
	return parsed.Host
}

// DSN returns the address of a database for the driver go-sql-driver/mysql.
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

// awaitReady waits until the server accepts sessions. It first waits for the process to
// write its own ID, so that another server that has taken the port is not mistaken for it.
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

// greets reports whether the server accepts a session: its first packet is then a greeting, and otherwise an error.
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

// Exec runs statements on its own connection, one after the other.
func (s *MariaDBServer) Exec(ctx context.Context, sql string) error {
	_, err := s.Query(ctx, sql)
	return err
}

// Query runs statements like Exec, and returns all rows as text: one line for each row,
// with tabs between the columns. It runs the client program, so that this package needs no
// driver. A process takes some ten milliseconds: a test with many queries uses a driver.
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

// Runs reports whether the server was started here, and neither killed nor stopped since.
func (s *MariaDBServer) Runs() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc != nil && !s.proc.Ended()
}

// stop shuts the server down.
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

// end kills the server, which leaves nothing outside of its directory.
func (s *MariaDBServer) end() error { return s.kill() }

// kill kills the server, with any process that copies its data to another node.
func (s *MariaDBServer) kill() error {
	running := s.proc
	s.proc = nil
	if running == nil || running.Ended() {
		return nil
	}
	return running.KillTree()
}
