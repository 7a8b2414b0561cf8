// Package sealed keeps the content of a store secret from readers of its database, its backups and its logs: it
// encrypts answers, recovery data, external events and messages of the outbox before the inner store gets them, and
// decrypts them when they are read.
//
//	inside, err := postgres.Open(ctx, os.Getenv("DATABASE_URL"))
//	…
//	s, err := sealed.New(inside, sealed.Config{Keys: []sealed.Key{{ID: 2, Secret: secret2}, {ID: 1, Secret: secret1}}})
//	guard, err := onceward.New(s, onceward.Config{…})
//
// Content is compressed with zstd and encrypted with AES-256-GCM, bound to its scope, its key and its attempt: content
// that was moved to another record cannot be opened. Content that cannot be opened gives a [*store.UnreadableError],
// never an execution.
//
// Scopes and keys stay readable, as do statuses, states, times, names of operations and recovery points, ids of
// providers, reasons and the audit: the store and people search for them. Keep the secrets out of the backups of the
// database.
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
	// Keys is the key ring. The first key seals, all keys open. It is required.
	Keys []Key
	// CompressFrom is the size in bytes from which content is compressed, if that makes it smaller; negative for never.
	// Default: [DefaultCompressFrom].
	CompressFrom int
	// Redact changes an answer before it is stored, and so the answer that replays get; the caller of the execution
	// gets the original. The function gets a copy, and must make the same change to the same answer each time. Default:
	// none.
	Redact func(*store.Response)
	// RefusePlain refuses content that is not sealed: content from before the store was sealed, or content that was
	// written by someone with access to the database and without a key. Set it when [Report].Plain is empty and the
	// retentions of external events and late completions, which Plain does not count, are over. Default: false; such
	// content is read as it is.
	RefusePlain bool
	// OpenOnly opens sealed content and seals nothing. It is for the deployment before the first deployment that seals,
	// so that every node can open every record. Default: false.
	OpenOnly bool
}

// Key is a key of the ring.
type Key struct {
	// ID names the key in sealed values permanently: never use it for another secret.
	ID uint32
	// Secret is 32 random bytes.
	Secret []byte
}

// Store is a [store.Store] around an inner store, with all capabilities of the inner store.
type Store struct {
	*wrap.Store
	ring        *ring
	redact      func(*store.Response)
	refusePlain bool
	openOnly    bool
}

// The store changes the content in calls of these interfaces, and passes all other calls on.
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

// New returns a store that keeps its content sealed in the inner store. If the inner store has a front, the sealed
// store must be outside the front.
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

// unreadable returns the error for content that cannot be opened.
func unreadable(reason string) error {
	return &store.UnreadableError{Version: store.RecordVersion, Reason: reason}
}
