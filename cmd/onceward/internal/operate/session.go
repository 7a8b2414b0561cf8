// Package operate opens a store for an operator and finds records by any of their names.
package operate

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sealed"
	"github.com/onceward/onceward/storeurl"
)

// These errors are the classes of a command's errors, beside the errors of package store.
var (
	// ErrUsage is returned when a command line makes no sense.
	ErrUsage = errors.New("usage")
	// ErrRefused is returned when an act was not begun because its record has changed since the person saw it.
	ErrRefused = errors.New("refused")
)

// Usage returns an error that is [ErrUsage].
func Usage(format string, args ...any) error {
	return &classified{ErrUsage, fmt.Sprintf(format, args...)}
}

// Refused returns an error that is [ErrRefused].
func Refused(format string, args ...any) error {
	return &classified{ErrRefused, fmt.Sprintf(format, args...)}
}

// classified is an error of a class that is not in its text.
type classified struct {
	class error
	text  string
}

func (e *classified) Error() string { return e.text }
func (e *classified) Unwrap() error { return e.class }

// Target is a store, and the parts of the service's configuration that reading it takes.
type Target struct {
	// URL names the store, as package storeurl takes it.
	URL string
	// Patience is how long the store may take for a page of a list; zero means no limit.
	Patience time.Duration
	// Writes announces changes. Without it, a read-only user or file is enough.
	Writes bool
	// Secrets are the service's secrets. Downstream keys cannot be derived without them.
	Secrets Secrets
	// SealKeys is the key ring of a sealed store. Without it, sealed content cannot be read.
	SealKeys []sealed.Key
}

// Secrets are the secrets of the service's configuration that downstream keys are derived from.
type Secrets struct {
	Secret, Downstream []byte
	// Old are the secrets of either kind that were rotated out.
	Old       [][]byte
	Namespace string
}

// Known reports whether there are any.
func (s Secrets) Known() bool { return len(s.Secret) > 0 }

// Session is an open store.
type Session struct {
	Store store.Store
	// Guard derives downstream keys, if Target.Secrets were known.
	Guard *onceward.Guard
	// Operator acts on records and reads them.
	Operator *reconcile.Operator

	target Target
	opened storeurl.Closer
}

// Open opens a store. It never changes a table: migrations are a command of their own.
func Open(ctx context.Context, target Target) (*Session, error) {
	if err := CheckURL(target.URL); err != nil {
		return nil, err
	}
	opened, err := storeurl.OpenStore(ctx, target.URL, target.options()...)
	if err != nil {
		return nil, Unavailable(err)
	}
	s := &Session{Store: opened, target: target, opened: opened}
	if err := s.prepare(); err != nil {
		return nil, errors.Join(err, opened.Close())
	}
	return s, nil
}

func (t *Target) options() []storeurl.Option {
	// Warnings for the start of a service are noise before the output of a command.
	quiet := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	options := []storeurl.Option{storeurl.WithLogger(quiet), storeurl.WithManualMigration()}
	if !t.Writes {
		options = append(options, storeurl.ReadOnly())
	}
	return options
}

// CheckURL refuses a store that is not named.
func CheckURL(url string) error {
	if url == "" {
		return Usage("the store is not named: give --store URL, or set ONCEWARD_STORE; " +
			"such as postgres://user@host/database, mysql://user@host/database, sqlite:PATH, redis://host:6379/0 or dynamodb://TABLE")
	}
	return nil
}

// Unavailable marks the error of a store that could not be opened as [store.ErrUnavailable], unless the store can never
// be opened.
func Unavailable(err error) error {
	if err == nil || errors.Is(err, store.ErrUnavailable) || errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	return &unopened{err}
}

// unopened is a store that could not be opened.
type unopened struct{ err error }

func (e *unopened) Error() string   { return e.err.Error() }
func (e *unopened) Unwrap() []error { return []error{store.ErrUnavailable, e.err} }

func (s *Session) prepare() (err error) {
	if len(s.target.SealKeys) > 0 {
		if s.Store, err = sealed.New(s.opened, sealed.Config{Keys: s.target.SealKeys}); err != nil {
			return Usage("--seal-key-file: %v", err)
		}
	}
	secrets := s.target.Secrets
	if !secrets.Known() {
		// Operators need a guard. With a random secret it can derive no key, and reports that.
		secrets.Secret = []byte(rand.Text())
	}
	s.Guard, err = onceward.New(s.Store, onceward.Config{
		Secret: secrets.Secret, DownstreamSecret: secrets.Downstream, OldDownstreamSecrets: secrets.Old,
		Namespace: secrets.Namespace,
		Logger:    slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return Usage("%v", err)
	}
	s.Operator, err = reconcile.NewOperator(s.Guard, s.Store)
	return err
}

// Refresh lets a long session see later writes. A read-only file that no process has open is read as one that never
// changes, so files are reopened.
func (s *Session) Refresh(ctx context.Context) error {
	if at, err := storeurl.Parse(s.target.URL); err != nil || at.Engine != storeurl.SQLite {
		return err
	}
	again, err := Open(ctx, s.target)
	if err != nil {
		return err
	}
	opened := s.opened
	*s = *again
	return opened.Close()
}

// Close closes the store.
func (s *Session) Close() error { return s.opened.Close() }

// KnowsSecrets reports whether downstream keys can be derived.
func (s *Session) KnowsSecrets() bool { return s.target.Secrets.Known() }

// Unsealed reports whether the session has the key ring of a sealed store.
func (s *Session) Unsealed() bool { return len(s.target.SealKeys) > 0 }

// Need returns a capability of the store, or an error that names the missing capability.
func Need[T any](s *Session, does string) (T, error) {
	able, ok := store.As[T](s.Store)
	if !ok {
		return able, Usage("this store does not %s: SQLite, PostgreSQL and MySQL do", does)
	}
	return able, nil
}

// Outbox returns the store as one of messages.
func (s *Session) Outbox() (outbox.Store, error) {
	return Need[outbox.Store](s, "keep messages, because it has no transactions of several statements that they could "+
		"belong to")
}

// Lister returns the store as one that can be looked through.
func (s *Session) Lister() (store.Lister, error) { return Need[store.Lister](s, "list its records") }

// Chosen is a filter and a further condition on its records; a nil Wanted accepts all.
type Chosen struct {
	store.Filter
	Wanted func(*store.Record) bool
}

// list reads a page within the target's time limit.
func (s *Session) list(ctx context.Context, lister store.Lister, f store.Filter) ([]store.Record, error) {
	if s.target.Patience > 0 {
		bounded, cancel := context.WithTimeout(ctx, s.target.Patience)
		defer cancel()
		ctx = bounded
	}
	return lister.List(ctx, f)
}

// Each visits the chosen records, page by page, at most limit of them. It returns how many it has visited, and whether
// more follow.
func (s *Session) Each(
	ctx context.Context, c Chosen, limit int, visit func(*store.Record) error,
) (visited int, more bool, err error) {
	lister, err := s.Lister()
	if err != nil {
		return 0, false, err
	}
	for {
		c.Limit = store.MaxPage
		if c.Wanted == nil {
			c.Limit = min(limit-visited+1, store.MaxPage)
		}
		page, err := s.list(ctx, lister, c.Filter)
		if err != nil {
			return visited, false, err
		}
		for i := range page {
			if c.Wanted != nil && !c.Wanted(&page[i]) {
				continue
			}
			if visited == limit {
				return visited, true, nil
			}
			if err := visit(&page[i]); err != nil {
				return visited, false, err
			}
			visited++
		}
		if len(page) < c.Limit {
			return visited, false, nil
		}
		c.After = page[len(page)-1].ID
	}
}
