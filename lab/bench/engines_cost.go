package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strconv"
	"strings"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/dynamodb"
	"github.com/onceward/onceward/store/mysql"
	"github.com/onceward/onceward/store/postgres"
	"github.com/onceward/onceward/store/redis"
)

// enginesCost is the name by which the costs are asked for. They have no goal.
const enginesCost = "engines-cost"

// costOperations is how many operations of each kind are counted: one after the other, by one caller.
var costOperations = 500

// costKeys is how many records there are when the bytes are counted that each of them takes.
var costKeys = 100_000

// costStore is a store that is measured behind a relay, with the log that its server writes.
type costStore struct {
	name string
	// open starts the server, and opens the store through the relay.
	open func(ctx context.Context, o *options) (*costSite, error)
}

// costSite is a store that is open.
type costSite struct {
	relay *relay
	store interface {
		store.Store
		Close() error
	}
	// log is how many bytes the server has written to its log; nil if there is none.
	log func(ctx context.Context) (float64, error)
	// kept is how many bytes a settled record takes; nil if that is not measured here.
	kept  func(ctx context.Context) (float64, error)
	close func() error
}

var costStores = []costStore{
	{"PostgreSQL", openPostgresCost},
	{"MariaDB, log_bin=OFF", openMariaDBCost(redoBytes)},
	{"MariaDB, the binlog alone", openMariaDBCost(binlogBytes, "log-bin=binlog", "sync-binlog=1", "server-id=1")},
	{"Redis, appendfsync always", openRedisCost},
	{"DynamoDB's protocol", openDynamoDBCost},
}

// measureCosts counts what an operation costs on each engine: round trips, bytes on the network, bytes in the server's
// log, and bytes that a record takes.
func measureCosts(ctx context.Context, o *options, r *report) (err error) {
	if !o.wants(enginesCost) {
		return nil
	}
	if err := useDirectory(o.dir); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, servers.CloseAll()) }()
	t := &table{
		title: fmt.Sprintf("What an operation costs, with an answer of %d bytes", len(answer)),
		head:  []string{"engine", "operation", "round trips", "bytes sent", "bytes received", "bytes of log"},
	}
	sizes := &table{
		title: fmt.Sprintf("Bytes a settled record takes, of %s", grouped(float64(costKeys))),
		head:  []string{"engine", "bytes"},
	}
	for _, c := range costStores {
		if err := c.measure(ctx, o, t, sizes); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	r.keep(t)
	r.keep(sizes)
	return nil
}

// costKind is a kind of operation that is counted.
type costKind struct {
	name string
	do   func(ctx context.Context, s store.Store, key string) error
	// again says that the keys are those of the operations before.
	again bool
}

var costKinds = []costKind{
	{"reserve and complete", reserveAndComplete, false},
	{"replay", func(ctx context.Context, s store.Store, key string) error {
		return replayOnce(ctx, s, reservation(key))
	}, true},
	{"transactional, with nothing but the answer", transactNothing, false},
}

// transactNothing is a transaction of the store with nothing in it but the claim and the answer.
func transactNothing(ctx context.Context, s store.Store, key string) error {
	v, err := s.(store.Transactor).Transact(ctx, reservation(key), func(context.Context, store.Verdict) store.Settlement {
		return store.Settlement{Action: store.TxCommit, Completion: completion()}
	})
	return decided(v, err, store.DecisionExecute)
}

func (c *costStore) measure(ctx context.Context, o *options, t, sizes *table) (err error) {
	site, err := c.open(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, site.store.Close(), site.relay.close(), site.close()) }()
	var keys []string
	for _, kind := range costKinds {
		if !kind.again {
			keys = newKeys(costOperations)
		}
		row, err := site.count(ctx, &kind, keys)
		if err != nil {
			return err
		}
		if row != nil {
			t.add(append([]string{c.name, kind.name}, row...)...)
		}
	}
	if site.kept == nil {
		return nil
	}
	kept, err := site.kept(ctx)
	sizes.add(c.name, grouped(kept))
	return err
}

// count does operations one after the other, and returns what each of them cost. The first ones are not counted: they
// open connections. It returns nothing for a kind that the store does not have.
func (site *costSite) count(ctx context.Context, kind *costKind, keys []string) (row []string, err error) {
	if _, ok := site.store.(store.Transactor); !ok && strings.HasPrefix(kind.name, "transactional") {
		return nil, nil
	}
	var before, after float64
	for i, key := range keys {
		if i == len(keys)/10 {
			site.relay.take()
			if before, err = site.logged(ctx); err != nil {
				return nil, err
			}
		}
		if err := kind.do(ctx, site.store, key); err != nil {
			return nil, err
		}
	}
	passed, n := site.relay.take(), float64(len(keys)-len(keys)/10)
	if after, err = site.logged(ctx); err != nil {
		return nil, err
	}
	log := ""
	if site.log != nil {
		log = grouped((after - before) / n)
	}
	return []string{
		fmt.Sprintf("%.1f", passed.trips/n), grouped(passed.sent / n), grouped(passed.received / n), log,
	}, nil
}

// logged is how many bytes the server has written to its log.
func (site *costSite) logged(ctx context.Context) (float64, error) {
	if site.log == nil {
		return 0, nil
	}
	return site.log(ctx)
}

// openPostgresCost has a server on which a checkpoint comes late: the first change of a page after one logs the whole
// page, which is another cost (see postgres-scale).
func openPostgresCost(ctx context.Context, o *options) (*costSite, error) {
	s, err := openServer(ctx, o, "shared_buffers=1GB")
	if err != nil {
		return nil, err
	}
	at, err := url.Parse(s.url)
	if err != nil {
		return nil, err
	}
	r, err := startRelay(at.Host)
	if err != nil {
		return nil, err
	}
	at.Host = r.addr()
	st, err := postgres.Open(ctx, at.String())
	return &costSite{
		relay: r, store: st, close: s.close,
		log: func(ctx context.Context) (n float64, err error) {
			err = s.admin.QueryRow(ctx, `SELECT pg_current_wal_lsn() - '0/0'::pg_lsn`).Scan(&n)
			return n, err
		},
		kept: func(ctx context.Context) (float64, error) {
			size, err := s.sizeOf(ctx, &layouts[len(layouts)-1], costKeys)
			return size.table + size.indexes, err
		},
	}, err
}

// openMariaDBCost has a server with more settings, and counts one of its logs.
func openMariaDBCost(
	log func(*mariadbServer) func(context.Context) (float64, error), settings ...string,
) func(context.Context, *options) (*costSite, error) {
	return func(ctx context.Context, _ *options) (*costSite, error) {
		s, err := openMariaDBServer(ctx, settings...)
		if err != nil {
			return nil, err
		}
		r, err := startRelay(s.Addr())
		if err != nil {
			return nil, err
		}
		site, err := s.open(ctx, 1, 0, interpolated)
		if err != nil {
			return nil, err
		}
		st, err := mysql.Open(ctx, "mysql://root@"+r.addr()+"/"+site.database)
		leave := func() error { return errors.Join(site.leave()(), s.close()) }
		cost := &costSite{relay: r, store: st, close: leave, log: log(s)}
		if len(settings) == 0 {
			cost.kept = site.bytesKept
		}
		return cost, err
	}
}

// redoBytes is how far the log of InnoDB has come, for which there is a number in bytes.
func redoBytes(s *mariadbServer) func(context.Context) (float64, error) {
	return func(ctx context.Context) (float64, error) {
		status, err := s.pairs(ctx, `SHOW GLOBAL STATUS LIKE 'Innodb_lsn_current'`)
		if err != nil {
			return 0, err
		}
		return strconv.ParseFloat(status["innodb_lsn_current"], 64)
	}
}

// binlogBytes is how long the binlog is.
func binlogBytes(s *mariadbServer) func(context.Context) (float64, error) {
	return func(ctx context.Context) (n float64, err error) {
		var file, position string
		var ignored any
		err = s.admin.QueryRowContext(ctx, `SHOW MASTER STATUS`).Scan(&file, &position, &ignored, &ignored)
		if err != nil {
			return 0, err
		}
		return strconv.ParseFloat(position, 64)
	}
}

// bytesKept fills the table with copies of a settled record, and divides its file by their number.
func (site *mariadbSite) bytesKept(ctx context.Context) (size float64, err error) {
	err = site.exec(ctx, `DELETE FROM onceward_record WHERE state DIV 10 <> 2`, `DELETE FROM onceward_record LIMIT 1`)
	if err != nil {
		return 0, err
	}
	if err := site.cloneRecords(ctx, int64(costKeys)); err != nil {
		return 0, err
	}
	var rows float64
	if err := site.pool.QueryRowContext(ctx, `SELECT COUNT(*) FROM onceward_record`).Scan(&rows); err != nil {
		return 0, err
	}
	err = site.pool.QueryRowContext(ctx, `SELECT FILE_SIZE FROM information_schema.INNODB_SYS_TABLESPACES
		WHERE NAME = ?`, site.database+"/onceward_record").Scan(&size)
	return size / rows, err
}

// openRedisCost has a server whose log is not written again.
func openRedisCost(ctx context.Context, _ *options) (*costSite, error) {
	server, err := servers.StartRedis(ctx, "auto-aof-rewrite-percentage 0")
	if err != nil {
		return nil, err
	}
	at, err := url.Parse(server.URL())
	if err != nil {
		return nil, err
	}
	r, err := startRelay(at.Host)
	if err != nil {
		return nil, err
	}
	at.Host = r.addr()
	st, err := redis.Open(ctx, at.String(), redis.WithLogger(slog.New(slog.DiscardHandler)))
	info := func(ctx context.Context, name string) (float64, error) {
		all, err := server.Info(ctx)
		if err != nil {
			return 0, err
		}
		return strconv.ParseFloat(all[name], 64)
	}
	return &costSite{
		relay: r, store: st, close: server.Close,
		log: func(ctx context.Context) (float64, error) { return info(ctx, "aof_current_size") },
		kept: func(ctx context.Context) (float64, error) {
			before, err := info(ctx, "used_memory")
			if err != nil {
				return 0, err
			}
			if err := fill(ctx, st, newKeys(costKeys)); err != nil {
				return 0, err
			}
			after, err := info(ctx, "used_memory")
			return (after - before) / float64(costKeys), err
		},
	}, err
}

// openDynamoDBCost has no log to count, and what an item takes follows from its attributes: see docs/dynamodb.md.
func openDynamoDBCost(ctx context.Context, _ *options) (*costSite, error) {
	s, err := openDynamoDBServer(ctx)
	if err != nil {
		return nil, err
	}
	r, err := startRelay(s.Addr())
	if err != nil {
		return nil, err
	}
	st, err := dynamodb.Open(ctx, "dynamodb://bench-cost?region=eu-central-1&endpoint=http://"+r.addr())
	return &costSite{relay: r, store: st, close: func() error { return nil }}, err
}
