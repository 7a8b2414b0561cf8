package postgres

import (
	"context"
	"encoding/hex"
	"time"
)

// The announcements that processes make to each other. The hash of a record follows.
const (
	waiting = 'w' // somebody waits for the record
	settled = 's' // the record was settled, or its transaction is over
	hello   = 'h' // from the listener to itself
	arrived = 'o' // a message was added to the outbox; nothing follows
)

// awaitedFor is how long an announcement of waiting counts. It is made anew before.
const awaitedFor = time.Minute

// announce tells all processes.
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
		w.store.messages.wake()
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

// expect notes that somebody waits for a record, and forgets what nobody waits for any more.
func (w *watcher) expect(hash [16]byte, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for other, until := range w.awaited {
		if now.After(until) {
			delete(w.awaited, other)
		}
	}
	w.awaited[hash] = now.Add(awaitedFor)
}

// settled wakes those who wait for a record: in this process at once, in others by an announcement, of which the caller
// does not wait for the end.
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
