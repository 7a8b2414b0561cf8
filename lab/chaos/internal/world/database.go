package world

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/ncruces/go-sqlite3"

	"github.com/onceward/onceward/lab/chaos/internal/node"
)

// Stores are the kinds of stores that a run can take place on.
var Stores = []string{"sqlite", "postgres", "redis", Cluster, "tiered", Patroni, "mysql", Galera, "dynamodb"}

// Cluster is the store that may forget what it has acknowledged, when a replica takes over.
const Cluster = "redis-cluster"

// Patroni is the store whose standby takes over, with all that was acknowledged, when the primary is gone.
const Patroni = "postgres-patroni"

// Galera is the store of several servers that all take writes.
const Galera = "galera"

// database is the store of a world, and what can happen to it.
type database interface {
	// url is what a node opens, which may be another one for each, and direct what can be opened past all faults.
	url() string
	direct() string
	// front is the URL of a Redis in front of the store, empty for none.
	front() string
	// clockFile is the clock of a store that has none of its own.
	clockFile() string
	// plain says that the store has no tables for transactions, and a clock that cannot be put off.
	plain() bool
	// setClock puts the store's clock off. That of a plain one is left as it is.
	setClock(ctx context.Context, offset time.Duration) error
	// busy tells what the database itself is at, for people; empty if there is nothing to tell.
	busy(ctx context.Context) string
	// faults are those that only this kind of database can have.
	faults() []Fault
	close() error
}

// machine is a server that can fail.
type machine interface {
	Kill() error
	Restart() error
	Pause() error
	Resume() error
}

// die has a server killed and started again.
func (w *World) die(ctx context.Context, m machine) error {
	if err := m.Kill(); err != nil {
		return err
	}
	pause(ctx, w.between(50*time.Millisecond, 600*time.Millisecond))
	return m.Restart()
}

// sleep has a server paused for a while.
func (w *World) sleep(ctx context.Context, m machine) error {
	if err := m.Pause(); err != nil {
		return err
	}
	pause(ctx, w.between(200*time.Millisecond, 2*time.Second))
	return m.Resume()
}

func openDatabase(ctx context.Context, w *World) (database, error) {
	switch w.Store {
	case "sqlite":
		return openFile(w)
	case "postgres":
		return openServer(ctx, w)
	case "redis":
		return openRedis(ctx, w)
	case "tiered":
		return openTiered(ctx, w)
	case "mysql":
		return openMySQL(ctx, w)
	case "dynamodb":
		return openDynamoDB(ctx, w)
	case Galera:
		return openGalera(ctx, w)
	case Patroni:
		return openPatroni(ctx, w)
	case Cluster:
		return openCluster(ctx, w)
	default:
		return nil, fmt.Errorf("no store is called %q: use %s", w.Store, strings.Join(Stores, " or "))
	}
}

// file is an SQLite file. It fails by its machine: all processes die at once, or another program keeps the file locked.
type file struct {
	world *World
	path  string
	clock string
}

func openFile(w *World) (database, error) {
	f := &file{world: w, path: filepath.Join(w.Dir, "payments.db"), clock: filepath.Join(w.Dir, "clock")}
	return f, node.SetClock(f.clock, 0)
}

func (f *file) url() string       { return f.path }
func (f *file) direct() string    { return f.path }
func (f *file) front() string     { return "" }
func (f *file) clockFile() string { return f.clock }
func (f *file) plain() bool       { return false }
func (f *file) close() error      { return nil }

func (f *file) busy(context.Context) string { return "" }

func (f *file) setClock(_ context.Context, offset time.Duration) error {
	return node.SetClock(f.clock, offset)
}

func (f *file) faults() []Fault {
	return []Fault{{"machine-crash", f.crash}, {"file-locked", f.lock}}
}

// crash kills all nodes at one time, as the crash of their one machine would.
func (f *file) crash(context.Context) error {
	nodes := f.world.nodes()
	if err := f.world.Collapsed(); err != nil {
		return err
	}
	for _, p := range nodes {
		p.acts.Lock() // none is asleep or starting then
	}
	for _, p := range nodes {
		p.kill()
	}
	for _, p := range nodes {
		p.acts.Unlock()
	}
	var errs []error
	for _, p := range nodes {
		errs = append(errs, p.Start())
	}
	return errors.Join(errs...)
}

// lock keeps the file's lock for a while, as a backup or a curious person would.
func (f *file) lock(ctx context.Context) error {
	conn, err := sqlite3.Open("file:" + f.path + "?_pragma=busy_timeout(10000)")
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.Exec(`BEGIN IMMEDIATE`); err != nil {
		return err
	}
	pause(ctx, f.world.between(200*time.Millisecond, 1500*time.Millisecond))
	return conn.Exec(`ROLLBACK`)
}
