package postgres

import (
	"context"
	"encoding/hex"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/store"
)

const (
	// The pauses between looks at a record that callers wait for. The first look catches a record that was being
	// settled while the wait was announced to its owner. Later looks are for owners that are gone without an
	// announcement. Without a listener there are only looks.
	firstLook    = 10 * time.Millisecond
	calmLook     = time.Second
	listenerless = 50 * time.Millisecond
)

// watcher wakes the callers that wait for a record, and watches each such record once, however
// many callers wait for it.
//
// A process sends a notification only if another process waits, because notifications make commits wait for each other.
// A process that waits announces that to all processes, and the process that settles the record announces that it did.
type watcher struct {
	store  *Store
	config *pgxpool.Config // how to connect

	mu      sync.Mutex
	watched map[watchKey]*watch
	// awaited maps the records that another process waits for to the time until which that counts.
	awaited map[[16]byte]time.Time
	// swept is when entries that no longer count were last removed.
	swept  time.Time
	closed bool

	ctx     context.Context
	stop    context.CancelFunc
	running sync.WaitGroup
	listen  listener
}

// watchKey identifies what callers wait for: the end of an attempt, or of a transaction if attempt is zero.
type watchKey struct {
	id      store.ID
	attempt int64
}

// watch is shared by the callers that wait for the same key.
type watch struct {
	hash    [16]byte
	changed chan struct{} // closed when the record may have changed
	nudge   chan struct{} // receives when a notification arrives
	waiting int
	cancel  context.CancelFunc
	err     error
}

func newWatcher(s *Store, config *pgxpool.Config) *watcher {
	w := &watcher{
		store: s, config: config.Copy(), watched: make(map[watchKey]*watch), awaited: make(map[[16]byte]time.Time),
	}
	w.ctx, w.stop = context.WithCancel(context.Background())
	if !s.options.readOnly { // no caller waits on a store that only reads
		w.listen.start(w)
	}
	return w
}

// Wait implements [store.Waiter].
func (s *Store) Wait(ctx context.Context, id store.ID, attempt int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.ready(); err != nil {
		return err
	}
	if attempt == 0 {
		if waited, err := s.waitForOwn(ctx, id); waited {
			return err
		}
	}
	key := watchKey{id, attempt}
	one, err := s.waits.join(key)
	if err != nil {
		return err
	}
	defer s.waits.leave(key, one)
	select {
	case <-one.changed:
		return one.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// waitForOwn waits for a transaction of this process.
func (s *Store) waitForOwn(ctx context.Context, id store.ID) (waited bool, err error) {
	ended := s.flights.Ended(id)
	if ended == nil {
		return false, nil
	}
	select {
	case <-ended:
		return true, nil
	case <-ctx.Done():
		return true, ctx.Err()
	}
}

// join adds a caller to the watch of a key, and begins the watch if there is none.
func (w *watcher) join(key watchKey) (*watch, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, unavailable(errClosed)
	}
	one := w.watched[key]
	if one == nil {
		ctx, cancel := context.WithCancel(w.ctx)
		one = &watch{hash: w.store.hash(key.id), changed: make(chan struct{}), nudge: make(chan struct{}, 1), cancel: cancel}
		w.watched[key] = one
		w.running.Go(func() { w.run(ctx, key, one) })
	}
	one.waiting++
	return one, nil
}

// leave ends a wait. The last caller to leave ends the watch.
func (w *watcher) leave(key watchKey, one *watch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	one.waiting--
	if one.waiting == 0 {
		one.cancel()
		w.forget(key, one)
	}
}

// forget removes a watch, so that the next caller begins a new one. The caller holds the lock.
func (w *watcher) forget(key watchKey, one *watch) {
	if w.watched[key] == one {
		delete(w.watched, key)
	}
}

// run watches until the attempt or the transaction may be over.
func (w *watcher) run(ctx context.Context, key watchKey, one *watch) {
	one.err = w.await(ctx, key, one)
	w.mu.Lock()
	w.forget(key, one)
	w.mu.Unlock()
	one.cancel()
	close(one.changed)
}

func (w *watcher) await(ctx context.Context, key watchKey, one *watch) error {
	var told time.Time
	pause := firstLook
	for {
		if time.Since(told) > awaitedFor/2 {
			if err := w.announce(ctx, waiting, one.hash); err != nil {
				return w.over(ctx, err)
			}
			told = time.Now()
		}
		if ended, err := w.ended(ctx, key, one); ended || err != nil {
			return w.over(ctx, err)
		}
		select {
		case <-one.nudge:
			if key.attempt == 0 {
				return nil // the lock is free, or another transaction has it
			}
		case <-time.After(pause):
		case <-ctx.Done():
			return w.over(ctx, ctx.Err())
		}
		pause = w.store.options.calmLook
		if !w.listen.healthy() {
			pause = listenerless
		}
	}
}

// over returns the error with which a watch ends. Closing the store ends waits with an error. A watch that no caller
// waits for any more ends without one.
func (w *watcher) over(ctx context.Context, err error) error {
	if err == nil || w.ctx.Err() == nil && ctx.Err() != nil {
		return nil
	}
	return unavailable(err)
}

// ended reports whether the attempt, or the transaction, is over.
func (w *watcher) ended(ctx context.Context, key watchKey, one *watch) (bool, error) {
	if key.attempt == 0 {
		held, err := w.store.lockHeldBy(ctx, one.hash)
		return !held, err
	}
	rec, _, err := w.store.get(ctx, key.id)
	if errors.Is(err, store.ErrNotFound) {
		return true, nil
	}
	return rec.State != store.StateInProgress || rec.Attempt != key.attempt, err
}

// wake makes the watches of a record in this process look at it.
func (w *watcher) wake(hash [16]byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range w.watched {
		if one.hash == hash {
			one.tell()
		}
	}
}

// wakeAll makes all watches of attempts look, because notifications may have been lost.
func (w *watcher) wakeAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, one := range w.watched {
		if key.attempt != 0 {
			one.tell()
		}
	}
}

func (one *watch) tell() {
	select {
	case one.nudge <- struct{}{}:
	default: // it was nudged and has not looked yet
	}
}

func (w *watcher) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.stop()
	w.running.Wait()
}

// The announcements that processes make to each other. The hash of a record follows.
const (
	waiting = 'w' // a process waits for the record
	settled = 's' // the record was settled, or its transaction is over
	hello   = 'h' // from the listener to itself
	arrived = 'o' // a message was added to the outbox; nothing follows
)

// awaitedFor is how long an announcement of waiting counts. It is repeated before that time is over.
const awaitedFor = time.Minute

// announce notifies all processes.
func (w *watcher) announce(ctx context.Context, what byte, hash [16]byte) error {
	_, err := w.store.own.Exec(ctx, `SELECT pg_notify($1, $2)`, w.store.channel, string(what)+hex.EncodeToString(hash[:]))
	return err
}

// hear acts on an announcement.
func (w *watcher) hear(payload string) {
	if payload == "" {
		return
	}
	if payload[0] == arrived {
		w.store.messages.Wake()
		return
	}
	var hash [16]byte
	if b, err := hex.DecodeString(payload[1:]); err != nil || copy(hash[:], b) != len(hash) {
		return
	}
	switch payload[0] {
	case settled:
		w.wake(hash)
	case waiting:
		w.expect(hash, time.Now())
	}
}

// expect records that another process waits for a record, and removes entries that no longer count.
func (w *watcher) expect(hash [16]byte, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now.Sub(w.swept) > awaitedFor {
		maps.DeleteFunc(w.awaited, func(_ [16]byte, until time.Time) bool { return now.After(until) })
		w.swept = now
	}
	w.awaited[hash] = now.Add(awaitedFor)
}

// settled wakes the callers that wait for a record: in this process at once, and in others with an announcement. It
// does not wait until the announcement is sent.
func (w *watcher) settled(hash [16]byte) {
	w.mu.Lock()
	_, awaited := w.awaited[hash]
	delete(w.awaited, hash)
	closed := w.closed
	if awaited && !closed {
		w.running.Go(func() { _ = w.announce(w.ctx, settled, hash) })
	}
	local := len(w.watched) > 0
	w.mu.Unlock()
	if local {
		w.wake(hash)
	}
}

// The backoff before the listener connects again.
const (
	minListenBackoff = 100 * time.Millisecond
	maxListenBackoff = 30 * time.Second
)

// listener is the one connection on which the process receives announcements. While it is down, watches look at their
// records more often. It reconnects automatically.
type listener struct{ alive atomic.Bool }

func (l *listener) start(w *watcher) { w.running.Go(func() { l.run(w) }) }

func (l *listener) healthy() bool { return l.alive.Load() }

// listenRemedy is the advice that is logged about a listener that receives nothing.
const listenRemedy = "if a pooler is in between, give WithListenURL an address past it, or the same one if what is " +
	"there only passes everything on, which PgBouncer does not; " +
	"otherwise see the error, and what the server logs"

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
		pause := backoff.Jittered(minListenBackoff, maxListenBackoff, failures)
		level := slog.LevelWarn
		if failures > 1 {
			level = slog.LevelDebug // some servers never allow it
		}
		w.store.logger.Log(w.ctx, level, "onceward: cannot listen for notifications: duplicates that wait look for themselves",
			"error", err, "again_in", pause, "remedy", listenRemedy)
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
	defer l.leave(w, conn)
	if w.store.options.listenURL == "" {
		if err := wantDirect(w.ctx, conn); err != nil {
			return err
		}
	}
	if _, err := conn.Exec(w.ctx, `LISTEN `+pgx.Identifier{w.store.channel}.Sanitize()); err != nil {
		return err
	}
	if err := l.prove(w, conn); err != nil {
		return err
	}
	w.store.messages.Wake() // for messages whose notifications came before LISTEN
	l.alive.Store(true)
	w.wakeAll()
	for {
		payload, err := next(w.ctx, conn)
		if err != nil {
			return err
		}
		w.hear(payload)
	}
}

// errPooled is the reason why no connection through a pooler listens.
var errPooled = errors.New("a pooler is in between, and a notification that meets its reset of the connection " +
	"lets it give one client the replies to another")

// wantDirect returns an error if a pooler is in between. PgBouncer, up to 1.24 at least, takes a notification
// that arrives while it resets a connection for the end of the reset, and gives that connection to the next
// client before it is ready.
func wantDirect(ctx context.Context, conn *pgx.Conn) error {
	var process int32
	err := conn.QueryRow(ctx, `SELECT pg_backend_pid()`, pgx.QueryExecModeSimpleProtocol).Scan(&process)
	if err == nil && uint32(process) != conn.PgConn().PID() {
		err = errPooled
	}
	return err
}

// leaveTimeout bounds how long a connection takes to stop listening and to close.
const leaveTimeout = time.Second

// leave closes a connection that listens. With [WithListenURL] it first stops listening, because the address may lead
// to a pooler that keeps sessions, which resets the connection next.
func (l *listener) leave(w *watcher, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	if w.store.options.listenURL != "" {
		_, _ = conn.Exec(ctx, `UNLISTEN *`, pgx.QueryExecModeSimpleProtocol) // if the server is gone, nothing resets
	}
	_ = conn.Close(ctx) // the connection is dropped even if the server does not notice
}

// connect connects as the application's pool does.
func (l *listener) connect(w *watcher) (*pgx.Conn, error) {
	if w.store.options.listenURL != "" {
		config, err := PoolConfig(w.store.options.listenURL)
		if err != nil {
			return nil, err
		}
		return pgx.ConnectConfig(w.ctx, config.ConnConfig)
	}
	config := w.config.ConnConfig.Copy()
	if w.config.BeforeConnect != nil {
		if err := w.config.BeforeConnect(w.ctx, config); err != nil {
			return nil, err
		}
	}
	config.OnNotification = nil // the application's handler would take the notifications
	return pgx.ConnectConfig(w.ctx, config)
}

// prove waits for an announcement of its own, sent on another connection. Through a pooler that shares connections no
// announcement would ever arrive, and there would be no error.
func (l *listener) prove(w *watcher, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(w.ctx, w.store.options.lookTimeout)
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

// next returns the payload of the next notification. Sometimes pgx returns without one.
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
