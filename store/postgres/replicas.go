package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/onceward/onceward/internal/sqltx"
)

// ErrNoSyncReplica is returned with [WithSyncReplicasOnly] while commits do not wait for a standby.
var ErrNoSyncReplica = errors.New("postgres: commits do not wait for a standby, and a fail-over would lose them")

// WithSyncReplicasOnly refuses a server whose acknowledged commits a fail-over can lose, because they do not wait until
// a standby has them on its disk. It needs synchronous_standby_names, and synchronous_commit = on or remote_apply: with
// remote_write a standby may lose commits that it has acknowledged when its machine crashes too, and with local and off
// commits wait for no standby. A standby need not be connected now: without one, commits wait until one connects.
//
// The settings are read again every second, because a fail-over leads to another server, and cluster managers change
// them. While the settings are not as needed, writes are refused with [ErrNoSyncReplica], and nothing is executed.
// Commits in the second before this is noticed are not protected: see the guide on PostgreSQL for settings that leave
// no such gap. A replay is not confirmed by a standby: it may show a commit whose wait was cut off, and whose own
// caller has no answer yet. Default: a warning, if there are standbys and commits wait for none of them.
func WithSyncReplicasOnly() Option { return func(o *options) { o.syncOnly = true } }

// replicaInterval is how often the settings are read again.
const replicaInterval = time.Second

// replicas records whether commits wait for standbys.
type replicas struct {
	// missing is the reason why writes are refused, or nil.
	missing atomic.Pointer[error]
	stop    context.CancelFunc
	ended   chan struct{}
}

// selectReplicas reads the settings that decide whether commits wait for a standby, and the number of standbys that
// they wait for. A role that may not see the states sees no standby.
const selectReplicas = `SELECT current_setting('synchronous_standby_names'), current_setting('synchronous_commit'),
	(SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')),
	pg_is_in_recovery() OR pg_has_role('pg_read_all_stats', 'USAGE')`

// requireReplicas returns an error if commits do not wait for a standby although [WithSyncReplicasOnly] is given, and
// starts to check that regularly.
func (s *Store) requireReplicas(ctx context.Context) error {
	if !s.options.syncOnly {
		return nil
	}
	waiting, err := s.readReplicas(ctx)
	if err != nil {
		return err
	}
	if waiting == 0 {
		s.logger.WarnContext(ctx, "onceward: no standby is connected that commits wait for: they wait until there is one")
	}
	watching, stop := context.WithCancel(context.Background())
	s.replicas.stop, s.replicas.ended = stop, make(chan struct{})
	go s.watchReplicas(watching)
	return nil
}

// readReplicas reads the settings, and returns the number of standbys that commits wait for. The number is negative
// if the role may not see it.
func (s *Store) readReplicas(ctx context.Context) (waiting int, err error) {
	var names, synchronous string
	var sees bool
	if err := s.own.QueryRow(ctx, selectReplicas).Scan(&names, &synchronous, &waiting, &sees); err != nil {
		return 0, err
	}
	if !sees {
		waiting = -1
	}
	return waiting, syncRisk(names, synchronous)
}

// syncRisk returns an error that wraps [ErrNoSyncReplica] if a fail-over can lose commits.
func syncRisk(standbyNames, synchronous string) error {
	switch {
	case standbyNames == "":
		return fmt.Errorf("%w: synchronous_standby_names is empty; set it, as in 'ANY 1 (*)'", ErrNoSyncReplica)
	case synchronous != "on" && synchronous != "remote_apply":
		return fmt.Errorf("%w: synchronous_commit is %s; set it to on or remote_apply", ErrNoSyncReplica, synchronous)
	default:
		return nil
	}
}

// watchReplicas reads the settings every second until the store is closed. If the server does not answer, the last
// result stays, because such a server accepts no writes anyway.
func (s *Store) watchReplicas(ctx context.Context) {
	defer close(s.replicas.ended)
	tick := time.NewTicker(replicaInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		asking, cancel := context.WithTimeout(ctx, lookTimeout)
		_, err := s.readReplicas(asking)
		cancel()
		switch {
		case errors.Is(err, ErrNoSyncReplica):
			if s.replicas.missing.Swap(&err) == nil {
				s.logger.ErrorContext(ctx, "onceward: nothing is executed any more", "because", err)
			}
		case err == nil && s.replicas.missing.Swap(nil) != nil:
			s.logger.InfoContext(ctx, "onceward: commits wait for a standby again")
		}
	}
}

// refusal returns the reason why writes are refused, or nil.
func (r *replicas) refusal() error {
	if missing := r.missing.Load(); missing != nil {
		return unavailable(*missing)
	}
	return nil
}

func (r *replicas) close() {
	if r.stop != nil {
		r.stop()
		<-r.ended
	}
}

// confirm writes a message to the log, which nobody reads: without a write, its commit would wait for nothing.
const confirm = `SELECT pg_logical_emit_message(true, 'onceward', '')`

// errCutOff is the error of a confirmation whose own wait for the standbys was cut off.
var errCutOff = errors.New("the commit did not wait for its standbys")

// replicated waits until the standbys that commits wait for have everything that was committed so far. If the wait
// of a commit was cut off, by a restart of the server, an administrator or a lost connection, the commit is
// visible before the standbys have it: a call that finds it must not answer yet. The log has one order, so it is
// enough to wait for a further commit. If commits wait for nothing, this is a short round trip. A server without
// such a log has nothing to wait for.
func replicated(ctx context.Context, pool *ownPool) error {
	err := pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		trip := pipeline{conn: conn.Conn(), unnamed: true}
		trip.add(&statement{text: confirm})
		_, err := trip.run(sqltx.Undisturbed(ctx, askTimeout), func(int, [][]byte) error { return nil })
		if err == nil && trip.warned {
			err = errCutOff
		}
		return err
	})
	if err == nil || sqlState(err) == stateUndefinedFunction {
		return nil
	}
	return fmt.Errorf("commits were seen, and it could not be confirmed that the standbys have them: %w", err)
}

// checkConfirming returns an error if the user may not confirm commits.
func (s *Store) checkConfirming(ctx context.Context) error {
	if s.options.readOnly {
		return nil
	}
	_, err := s.own.Exec(ctx, confirm+` WHERE false`)
	switch sqlState(err) {
	case stateUndefinedFunction:
		return nil
	case stateInsufficientRights:
		return fmt.Errorf("the user may not confirm that standbys have a commit: "+
			"grant it EXECUTE on the function pg_logical_emit_message (boolean, text, text): %w", err)
	default:
		return err
	}
}

// checkWarnings returns an error if the connections hide the warning about a commit that did not wait for its standbys.
func (s *Store) checkWarnings(level string) error {
	if level != "error" || s.options.readOnly {
		return nil
	}
	return errors.New("client_min_messages is error, which hides that a commit did not wait for its standbys: " +
		"set it to warning, as by client_min_messages=warning in the URL")
}
