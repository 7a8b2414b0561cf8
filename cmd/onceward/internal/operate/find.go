package operate

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/onceward/onceward/cmd/onceward/internal/output"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
)

// The kinds of names that a record can be found by.
const (
	ByHash       = "hash"
	ByKey        = "key"
	ByDownstream = "downstream"
	ByProvider   = "provider"
)

// Ref is the name of a record, as a person gives it.
type Ref struct {
	// Text is the name itself.
	Text string
	// By is the kind of name: one of the constants, or empty to find out.
	By string
	// Scope is the scope of a key; nil if it was not given.
	Scope *string
	// Steps are the names of steps that may have sent a downstream key.
	Steps []string
}

// Find returns the ID of the named record. The error is [store.ErrNotFound] if there is none, and [ErrUsage] if the
// name fits several.
func (s *Session) Find(ctx context.Context, ref Ref) (store.ID, error) {
	switch ref.kind() {
	case ByKey:
		if ref.Scope == nil {
			return store.ID{}, Usage("a key is looked up within its scope: add --scope SCOPE")
		}
		return store.ID{Scope: *ref.Scope, Key: ref.Text}, nil
	case ByHash:
		return s.findHash(ctx, ref.Text)
	case ByDownstream:
		return s.findDownstream(ctx, ref)
	case ByProvider:
		return s.findProvider(ctx, ref.Text)
	default:
		return s.guess(ctx, ref)
	}
}

// kind returns the given kind of the name, or the kind that its form shows; empty if several are possible.
func (r *Ref) kind() string {
	switch {
	case r.By != "":
		return r.By
	case r.Scope != nil:
		return ByKey
	default:
		return ""
	}
}

// hashLength is the length of a hash in logs.
var hashLength = len(store.ID{}.Hash())

func isHex(s string) bool { return s != "" && strings.Trim(s, "0123456789abcdef") == "" }

// guess tries all possible kinds of the name.
func (s *Session) guess(ctx context.Context, ref Ref) (store.ID, error) {
	if len(ref.Text) == hashLength && isHex(ref.Text) {
		return s.guessHash(ctx, ref.Text)
	}
	downstream := s.mayBeDownstream(ref.Text)
	if downstream && s.KnowsSecrets() {
		id, err := s.findDownstream(ctx, ref)
		if !errors.Is(err, store.ErrNotFound) {
			return id, err
		}
	}
	id, err := s.findProvider(ctx, ref.Text)
	if !errors.Is(err, store.ErrNotFound) {
		return id, err
	}
	hint := "if it is a client's key, add --scope SCOPE"
	if downstream && !s.KnowsSecrets() {
		hint += "; if it is a downstream key, " + secretHint
	}
	return id, fmt.Errorf("no record has %s as its provider's id: %s: %w", shown(ref.Text), hint, store.ErrNotFound)
}

// guessHash tries a name that looks like a hash. A provider's id or a client's key may look so too: a UUID, for
// example.
func (s *Session) guessHash(ctx context.Context, text string) (store.ID, error) {
	id, err := s.findHash(ctx, text)
	if !errors.Is(err, store.ErrNotFound) {
		return id, err
	}
	id, providerErr := s.findProvider(ctx, text)
	if !errors.Is(providerErr, store.ErrNotFound) {
		return id, providerErr
	}
	return id, fmt.Errorf("if it is a client's key, add --scope SCOPE: %w", err)
}

// mayBeDownstream reports whether a text has the form of a downstream key. That needs no secret.
func (s *Session) mayBeDownstream(text string) bool {
	return len(s.Guard.OpenDownstreamKey(text)) > 0
}

const secretHint = "set ONCEWARD_SECRET or give --secret-file, and --namespace, as the service has them"

func shown(text string) string { return "'" + output.Text(text) + "'" }

func (s *Session) findHash(ctx context.Context, hash string) (store.ID, error) {
	if len(hash) != hashLength || !isHex(hash) {
		return store.ID{}, Usage("%s is no hash: as logs show it, it has %d hexadecimal digits, in lower case",
			shown(hash), hashLength)
	}
	finder, err := Need[store.Finder](s, "find a record by its hash")
	if err != nil {
		return store.ID{}, err
	}
	rec, err := finder.FindHash(ctx, hash)
	if !errors.Is(err, store.ErrNotFound) {
		return rec.ID, err
	}
	if id, auditErr := s.findInAudit(ctx, hash); auditErr != nil || id != (store.ID{}) {
		return id, auditErr
	}
	return rec.ID, fmt.Errorf("no record has the hash %s: it has expired, was rejected or busted, "+
		"or is in another store: %w", hash, err)
}

// auditPages is how many pages of the audit are searched for an operation whose record is gone.
const auditPages = 10

// findInAudit searches the latest acts for one on an operation with this hash whose record is gone, such as its
// removal. It returns the zero ID if there is none.
func (s *Session) findInAudit(ctx context.Context, hash string) (store.ID, error) {
	lister, ok := store.As[store.AuditLister](s.Store)
	if !ok {
		return store.ID{}, nil
	}
	for f, page := (store.AuditFilter{Limit: store.MaxPage}), 0; page < auditPages; page++ {
		entries, err := lister.ListAudit(ctx, f)
		if err != nil {
			return store.ID{}, err
		}
		for i := range entries {
			if entries[i].Hash() == hash {
				return entries[i].ID, nil
			}
		}
		if len(entries) < store.MaxPage {
			break
		}
		f.Until = entries[len(entries)-1].At
	}
	return store.ID{}, nil
}

// findProvider finds the operation whose record, or whose message in the outbox, has this provider's id.
func (s *Session) findProvider(ctx context.Context, id string) (store.ID, error) {
	finder, err := Need[store.Finder](s, "find a record by its provider's id")
	if err != nil {
		return store.ID{}, err
	}
	records, err := finder.FindProviderID(ctx, id)
	if err != nil {
		return store.ID{}, err
	}
	found := idsOf(records)
	box, ok := store.As[outbox.Store](s.Store)
	if !ok {
		return one(found, "the provider's id "+shown(id))
	}
	messages, err := box.Messages(ctx, outbox.Filter{ProviderID: id, Limit: store.MaxFound})
	if err != nil {
		return store.ID{}, err
	}
	for i := range messages {
		if origin := messages[i].Origin; origin != (store.ID{}) && !slices.Contains(found, origin) {
			found = append(found, origin)
		}
	}
	if len(found) == 0 && len(messages) > 0 {
		return store.ID{}, fmt.Errorf("message %s has the provider's id %s, and no operation has added it: "+
			"onceward outbox show %s: %w", messages[0].ID, shown(id), messages[0].ID, store.ErrNotFound)
	}
	return one(found, "the provider's id "+shown(id))
}

func (s *Session) findDownstream(ctx context.Context, ref Ref) (store.ID, error) {
	if !s.KnowsSecrets() {
		return store.ID{}, Usage("a downstream key tells its operation only to who has the service's secret: %s", secretHint)
	}
	found, err := s.Operator.Find(ctx, reconcile.Query{Subject: ref.Text, Steps: ref.Steps})
	if err != nil && len(found) == 0 {
		return store.ID{}, err
	}
	return one(idsOf(found), "the downstream key "+shown(ref.Text)+", by the secrets that are configured")
}

func idsOf(records []store.Record) (ids []store.ID) {
	for i := range records {
		ids = append(ids, records[i].ID)
	}
	return ids
}

// one returns the only operation that was found.
func one(found []store.ID, by string) (store.ID, error) {
	switch len(found) {
	case 0:
		return store.ID{}, fmt.Errorf("no record has %s: %w", by, store.ErrNotFound)
	case 1:
		return found[0], nil
	}
	hashes := make([]string, len(found))
	for i := range found {
		hashes[i] = found[i].Hash()
	}
	return store.ID{}, Usage("%d records have %s; name one by its hash: %s", len(found), by, strings.Join(hashes, ", "))
}

// Record finds and reads the named record. With an error that is [store.ErrUnreadable] it may still return what could
// be read.
func (s *Session) Record(ctx context.Context, ref Ref) (store.Record, error) {
	id, err := s.Find(ctx, ref)
	if err != nil {
		return store.Record{}, err
	}
	rec, err := s.Store.Get(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		err = fmt.Errorf("there is no record of key %s in scope %s: it has expired, was rejected or busted, "+
			"or is in another store: %w", shown(id.Key), shown(id.Scope), err)
	}
	rec.ID = id
	return rec, err
}

// Cursor returns the cursor of the place after a record in a list.
func Cursor(id store.ID) string { return base64.RawURLEncoding.EncodeToString(id.AppendBinary(nil)) }

// ParseCursor reads a cursor; an empty text is the beginning.
func ParseCursor(text string) (store.ID, error) {
	if text == "" {
		return store.ID{}, nil
	}
	encoded, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		var id store.ID
		if id, err = store.ParseID(encoded); err == nil {
			return id, nil
		}
	}
	return store.ID{}, Usage("--after %s is not what a list has printed behind its last record", shown(text))
}
