package postgres

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// hostTimeout bounds an attempt to connect to one of several servers, unless the URL has connect_timeout. It is less
// than half of the time that a guard gives a call, so that a server that hangs is skipped within a request.
const hostTimeout = 2 * time.Second

// PoolConfig returns the configuration with which [Open] connects to the servers of a URL, for programs that
// make their own pool or *sql.DB. A URL may name several servers, of which one is the primary, and a host name
// may have several addresses:
//
//	postgres://user@first:5432,second:5432/database
//
// The servers are tried in order until one is the primary, as with target_session_attrs=primary, which is assumed
// unless the URL has that parameter. Each server may take 2 s to answer, unless the URL has connect_timeout.
func PoolConfig(url string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	preferPrimary(config.ConnConfig)
	return config, nil
}

// preferPrimary makes connections go to the primary if an address leads to several servers. With a single server it
// costs nothing: that server is asked when it is used.
func preferPrimary(config *pgx.ConnConfig) {
	if config.ValidateConnect != nil {
		return // the URL chooses the server
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
			spread.Store(true) // permanently: a name that had several addresses may have them again
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

// severalHosts reports whether a URL names more than one server. The same server may be listed
// twice, with TLS and without.
func severalHosts(config *pgx.ConnConfig) bool {
	for _, other := range config.Fallbacks {
		if other.Host != config.Host || other.Port != config.Port {
			return true
		}
	}
	return false
}

// refuseStandby returns an error for a standby, so that the driver tries the next server.
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

// warnOfHosts logs a warning about a pool that may connect to a standby although there is a primary. Nothing is
// executed on a standby: requests are refused until the first server of the list is the primary again.
func (s *Store) warnOfHosts(ctx context.Context, config *pgx.ConnConfig) {
	if config.ValidateConnect == nil && severalHosts(config) {
		s.logger.WarnContext(ctx, "onceward: the pool names several servers and does not say which it wants: it may stay with a "+
			"standby, on which nothing is executed; make it with postgres.PoolConfig, or put target_session_attrs=primary "+
			"into its URL")
	}
}
