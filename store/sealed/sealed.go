// Package sealed keeps the content of a store secret from those who read its database, its backups and its logs: it
// encrypts answers, recovery data, external events and messages of the outbox before they come to the store inside, and
// opens them again on the way back.
//
//	inside, err := postgres.Open(ctx, os.Getenv("DATABASE_URL"))
//	…
//	s, err := sealed.New(inside, sealed.Config{Keys: []sealed.Key{{ID: 2, Secret: secret2}, {ID: 1, Secret: secret1}}})
//	guard, err := onceward.New(s, onceward.Config{…})
//
// Content is compressed with zstd and encrypted with AES-256-GCM, bound to its scope, its key and its attempt: what is
// moved to another record does not open. What cannot be opened is a [*store.UnreadableError], never an execution.
//
// Scopes and keys stay readable, as do statuses, states, times, names of operations and recovery points, ids of
// providers, reasons and the audit: the store looks for them, and people do. Put the secrets where the database's own
// backups do not go.
package sealed

import (
	"errors"
	"fmt"

	"github.com/onceward/onceward/internal/wrap"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
)

// DefaultCompressFrom is the size from which content is compressed.
const DefaultCompressFrom = 512

// Config configures a [Store].
type Config struct {
	// Keys is the key ring. The first key seals, all of them open. Required.
	Keys []Key
	// CompressFrom is the size in bytes from which content is compressed, if that makes it smaller; negative for never.
	// Default: [DefaultCompressFrom].
	CompressFrom int
	// Redact changes an answer before it is stored, and so what replays show; the caller of the execution gets the
	// original. It is given a copy, and makes the same of the same each time. Default: none.
	Redact func(*store.Response)
	// RefusePlain refuses content that is not sealed, which is what a store holds from before it was sealed, or what was
	// written by who has the database and no key. It is for when [Report].Plain is empty and the retentions of external
	// events and late completions, which that does not count, are over. Default: false; such content is read as it is.
	RefusePlain bool
	// OpenOnly opens what is sealed and seals nothing: it is for the deploy before the first one that seals, so that no
	// node meets a record that it cannot open. Default: false.
	OpenOnly bool
}

// Key is a key of the ring.
type Key struct {
	// ID names the key in what it sealed, for ever: an id is never given to another secret.
	ID uint32
	// Secret is 32 random bytes.
	Secret []byte
}

// Store is a [store.Store] around another one, with all capabilities of that one.
type Store struct {
	*wrap.Store
	ring        *ring
	redact      func(*store.Response)
	refusePlain bool
	openOnly    bool
}

// The store changes what these carry, and hands everything else on.
var (
	_ store.Wrapper              = (*Store)(nil)
	_ store.Transactor           = (*Store)(nil)
	_ store.TxCheckpointer       = (*Store)(nil)
	_ store.Reconciler           = (*Store)(nil)
	_ store.Lister               = (*Store)(nil)
	_ store.LateCompletionKeeper = (*Store)(nil)
	_ store.ExternalEventKeeper  = (*Store)(nil)
	_ store.Rewriter             = (*Store)(nil)
	_ store.Finder               = (*Store)(nil)
	_ store.Retainer             = (*Store)(nil)
	_ outbox.Store               = (*Store)(nil)
	_ outbox.AnswerStore         = (*Store)(nil)
	_ outbox.Sealer              = (*Store)(nil)
)

// New returns a store that keeps its content sealed in the store inside. Around a store that has a fast one in front,
// it goes around both.
func New(inside store.Store, config Config) (*Store, error) {
	if inside == nil {
		return nil, errors.New("sealed: there is no store")
	}
	if _, twice := store.Find[*Store](inside); twice {
		return nil, errors.New("sealed: the store inside is sealed already: one key ring has all the keys")
	}
	if config.OpenOnly && config.RefusePlain {
		return nil, errors.New("sealed: OpenOnly writes what RefusePlain would not read")
	}
	from := config.CompressFrom
	if from == 0 {
		from = DefaultCompressFrom
	}
	ring, err := newRing(config.Keys, from)
	if err != nil {
		return nil, fmt.Errorf("sealed: %w", err)
	}
	return &Store{
		Store: wrap.New(inside, nil), ring: ring, redact: config.Redact, refusePlain: config.RefusePlain,
		openOnly: config.OpenOnly,
	}, nil
}

// unreadable is the error for content that cannot be opened.
func unreadable(reason string) error {
	return &store.UnreadableError{Version: store.RecordVersion, Reason: reason}
}
