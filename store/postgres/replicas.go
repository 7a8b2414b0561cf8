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

// WithSyncReplicasOnly refuses a server whose acknowledged commits a fail-over can lose: one whose commits do not wait
// until a standby has them on its disk. It needs synchronous_standby_names, and synchronous_commit = on or remote_apply:
// with remote_write a standby may lose what it has acknowledged when its machine crashes too, and local and off wait for
// none. There need not be a standby now: without one, commits wait until one has come.
//
// The settings are read again every second, because a fail-over leads to another server, and managers of clusters change
// them. While they do not hold, writes are refused with [ErrNoSyncReplica], and nothing is executed. What a server
// commits in the second before that is noticed is not protected: see the guide on PostgreSQL for settings that leave no
// such gap. A replay is not confirmed by a standby: it may show a commit whose wait was cut off, and whose own caller has
// no answer yet. Default: a warning, if there are standbys of which none is waited for.
func WithSyncReplicasOnly() Option { return func(o *options) { o.syncOnly = true } }

// replicaInterval is how often the settings are read again.
const replicaInterval = time.Second

// replicas is what is known of the standbys that commits wait for.
type replicas struct {
	// missing is why writes are refused, nil if they are not.
	missing atomic.Pointer[error]
	stop    context.CancelFunc
	ended   chan struct{}
}

// selectReplicas reads what decides whether commits wait for a standby, and how many there are that they wait for. A role
// that does not see the states sees none.
const selectReplicas = `SELECT current_setting('synchronous_standby_names'), current_setting('synchronous_commit'),
	(SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')),
	pg_is_in_recovery() OR pg_has_role('pg_read_all_stats', 'USAGE')`

// requireReplicas refuses a server whose commits do not wait for a standby, if that was asked for, and keeps looking.
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

// readReplicas reads the settings, and returns how many standbys commits wait for; below zero if the role does not see
// that.
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

// syncRisk says why a fail-over can lose commits.
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

// watchReplicas reads the settings again until the store is closed. A server that does not answer refuses by itself, so
// that what was known stays.
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

// refusal is why nothing is written, or nil.
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

// confirm is a transaction that writes something to the log, which nobody reads: without that its commit would wait for
// nothing.
const confirm = `SELECT pg_logical_emit_message(true, 'onceward', '')`

// errCutOff is the error of a confirmation whose own wait for the standbys was cut off.
var errCutOff = errors.New("the commit did not wait for its standbys")

// replicated waits until the standbys that commits wait for have all that was committed so far. A commit whose wait was
// cut off, by a restart of the server, an administrator or a lost connection, can be seen before they have it: a call that
// finds it must not answer for it yet. The log is in one order, so that it is enough to wait for a further commit. Where
// commits wait for nothing it is a short trip, and a server without such a log has nothing to wait for.
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

// checkConfirming refuses a user who may not confirm commits.
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

// checkWarnings refuses connections on which the server does not report a commit that did not wait for its standbys.
func (s *Store) checkWarnings(level string) error {
	if level != "error" || s.options.readOnly {
		return nil
	}
	return errors.New("client_min_messages is error, which hides that a commit did not wait for its standbys: " +
		"set it to warning, as by client_min_messages=warning in the URL")
}
