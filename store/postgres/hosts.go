package postgres

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// hostTimeout is how long one of several servers may take to be connected to, unless the URL says otherwise
// (connect_timeout): less than half of what a guard gives a call, so that one that hangs is passed within a request.
const hostTimeout = 2 * time.Second

// PoolConfig returns how [Open] connects to the servers of a URL, for programs that make a pool, or a *sql.DB, of their
// own. A URL may name several servers, of which one decides, and so may a name with several addresses:
//
//	postgres://user@first:5432,second:5432/database
//
// They are tried in their order until one is the primary, as with target_session_attrs=primary, which is assumed unless
// the URL has that parameter. Each may take 2 s to answer, unless the URL has connect_timeout.
func PoolConfig(url string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	preferPrimary(config.ConnConfig)
	return config, nil
}

// preferPrimary lets connections be made to the server that decides where an address leads to several. Where it leads to
// one, it costs nothing: that one is asked when it is used.
func preferPrimary(config *pgx.ConnConfig) {
	if config.ValidateConnect != nil {
		return // the URL says which one
	}
	spread := new(atomic.Bool)
	spread.Store(severalHosts(config))
	if spread.Load() && config.ConnectTimeout == 0 {
		config.ConnectTimeout = hostTimeout
	}
	lookUp := config.LookupFunc
	config.LookupFunc = func(ctx context.Context, host string) ([]string, error) {
		addresses, err := lookUp(ctx, host)
		if len(addresses) > 1 {
			spread.Store(true) // for good: a name that had several addresses may have them again
		}
		return addresses, err
	}
	config.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if !spread.Load() {
			return nil
		}
		return refuseStandby(ctx, conn)
	}
}

// severalHosts reports whether a URL names more than one server. The same one may be there twice: with TLS, and without.
func severalHosts(config *pgx.ConnConfig) bool {
	for _, other := range config.Fallbacks {
		if other.Host != config.Host || other.Port != config.Port {
			return true
		}
	}
	return false
}

// refuseStandby makes the driver go on to the next server.
func refuseStandby(ctx context.Context, conn *pgconn.PgConn) error {
	results, err := conn.Exec(ctx, `SELECT pg_is_in_recovery()`).ReadAll()
	if err != nil {
		return err
	}
	if len(results) != 1 || len(results[0].Rows) != 1 || string(results[0].Rows[0][0]) != "f" {
		return ErrStandby
	}
	return nil
}

// warnOfHosts tells of a pool that may lead to standbys although there is a primary: nothing is executed on them, and
// requests are refused until the first server of the list is the primary again.
func (s *Store) warnOfHosts(ctx context.Context, config *pgx.ConnConfig) {
	if config.ValidateConnect == nil && severalHosts(config) {
		s.logger.WarnContext(ctx, "onceward: the pool names several servers and does not say which it wants: it may stay with a "+
			"standby, on which nothing is executed; make it with postgres.PoolConfig, or put target_session_attrs=primary "+
			"into its URL")
	}
}
