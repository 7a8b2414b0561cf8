package postgres

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/backoff"
)

// The pauses before the listener connects again.
const (
	firstRetry   = 100 * time.Millisecond
	longestRetry = 30 * time.Second
)

// listener is the one connection of the process on which it hears announcements. While it is down, those who wait look for
// themselves; it comes back by itself.
type listener struct{ alive atomic.Bool }

func (l *listener) start(w *watcher) { w.running.Go(func() { l.run(w) }) }

func (l *listener) healthy() bool { return l.alive.Load() }

func (l *listener) run(w *watcher) {
	failures := 0
	for {
		err := l.session(w)
		if l.alive.Swap(false) {
			failures = 0
		}
		if w.ctx.Err() != nil {
			return
		}
		failures++
		pause := backoff.Jittered(firstRetry, longestRetry, failures)
		w.store.logger.Warn("onceward: cannot listen for notifications: duplicates that wait look for themselves", "error", err, "again_in", pause)
		if !backoff.Sleep(w.ctx, pause) {
			return
		}
	}
}

// session listens on one connection until that is lost.
func (l *listener) session(w *watcher) error {
	conn, err := l.connect(w)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
		defer cancel()
		_ = conn.Close(ctx)
	}()
	if _, err := conn.Exec(w.ctx, `LISTEN `+pgx.Identifier{w.store.channel}.Sanitize()); err != nil {
		return err
	}
	if err := l.prove(w, conn); err != nil {
		return err
	}
	l.alive.Store(true)
	w.wakeAll()
	w.store.messages.wake()
	for {
		payload, err := next(w.ctx, conn)
		if err != nil {
			return err
		}
		w.hear(payload)
	}
}

func (l *listener) connect(w *watcher) (*pgx.Conn, error) {
	if w.store.options.listenURL != "" {
		return pgx.Connect(w.ctx, w.store.options.listenURL)
	}
	return pgx.ConnectConfig(w.ctx, w.config.Copy())
}

// prove waits for an announcement of its own, sent on another connection: through a pooler that shares connections none
// would ever come, and nobody would know.
func (l *listener) prove(w *watcher, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(w.ctx, lookTimeout)
	defer cancel()
	if err := w.announce(ctx, hello, [16]byte{}); err != nil {
		return err
	}
	for {
		payload, err := next(ctx, conn)
		if err != nil {
			return err
		}
		if payload != "" && payload[0] == hello {
			return nil
		}
		w.hear(payload)
	}
}

// next is the payload of the next notification. Now and then pgx returns without one.
func next(ctx context.Context, conn *pgx.Conn) (string, error) {
	for {
		notification, err := conn.WaitForNotification(ctx)
		if err != nil {
			return "", err
		}
		if notification != nil {
			return notification.Payload, nil
		}
	}
}
