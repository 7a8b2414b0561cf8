package postgres

import (
	"context"
	"encoding/hex"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// listener is the one connection of the process on which settled records are announced. It is opened when somebody waits
// for the first time. While it is down, those who wait look for themselves; it comes back by itself.
type listener struct {
	once  sync.Once
	alive atomic.Bool
}

// start makes sure that the listener runs.
func (l *listener) start(w *watcher) {
	l.once.Do(func() {
		w.running.Go(func() { l.run(w) })
	})
}

func (l *listener) healthy() bool { return l.alive.Load() }

func (l *listener) run(w *watcher) {
	warned := false
	for w.ctx.Err() == nil {
		err := l.session(w)
		l.alive.Store(false)
		if w.ctx.Err() != nil {
			return
		}
		if !warned {
			w.store.logger.Warn("onceward: cannot listen for notifications: duplicates that wait look for themselves until it works again", "error", err)
			warned = true
		}
		select {
		case <-time.After(retryListener):
		case <-w.ctx.Done():
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
	for {
		payload, err := next(w.ctx, conn)
		if err != nil {
			return err
		}
		if hash, ok := parseHash(payload); ok {
			w.wake(hash)
		}
	}
}

func (l *listener) connect(w *watcher) (*pgx.Conn, error) {
	if w.store.options.listenURL != "" {
		return pgx.Connect(w.ctx, w.store.options.listenURL)
	}
	return pgx.ConnectConfig(w.ctx, w.config.Copy())
}

// prove waits for a notification of its own, sent on another connection: through a pooler that shares connections none
// would ever come, and nobody would know.
func (l *listener) prove(w *watcher, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(w.ctx, lookTimeout)
	defer cancel()
	if _, err := w.store.own.Exec(ctx, `SELECT pg_notify($1, 'here')`, w.store.channel); err != nil {
		return err
	}
	for {
		payload, err := next(ctx, conn)
		if err != nil || payload == "here" {
			return err
		}
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

// parseHash reads a UUID in its text form.
func parseHash(text string) (hash [16]byte, ok bool) {
	b, err := hex.DecodeString(strings.ReplaceAll(text, "-", ""))
	return hash, err == nil && copy(hash[:], b) == len(hash)
}
