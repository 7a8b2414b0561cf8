package sealed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
)

// These are the defaults of [ResealerConfig].
const (
	DefaultInterval = time.Hour
	DefaultBatch    = 100
)

// ResealerConfig configures a [Resealer]. The zero value is ready to use.
type ResealerConfig struct {
	// Interval is the longest time between two runs. A random part of up to a fifth is subtracted, so that nodes that
	// started together do not run together. Default: [DefaultInterval].
	Interval time.Duration
	// Batch is the number of records or messages in one call of the store. Default: [DefaultBatch].
	Batch int
	// Progress is called after each batch of records with the report of the run so far. Default: none.
	Progress func(Report)
	// Logger logs failures, and the keys that are no longer in use. Default: [slog.Default].
	Logger *slog.Logger
}

// Report is the result of one run of a [Resealer].
type Report struct {
	// Records is the number of records that the run has read.
	Records int
	// Resealed is the number of records whose content the run has sealed under the first key.
	Resealed int
	// Unreadable is the number of records with content that could not be opened. This content is not changed.
	Unreadable int
	// Unseen counts content whose key is not known: the inner store could not read it, or the format of its seal is not
	// known here. A newer program wrote it, or it is damaged.
	Unseen Use
	// InUse counts, for each key, the content that is under it after the run. Content that is not sealed is counted in
	// Plain.
	InUse map[uint32]Use
	// Plain counts content that is not sealed. Neither Plain nor InUse counts external events and late completions,
	// which are never sealed again: they stay as they were stored until their retention is over.
	Plain Use
}

// Use counts the content under one key.
type Use struct {
	// Records have an answer or data under the key.
	Records int
	// Messages of the outbox have a payload, or an answer, under it; a message that has both counts twice. Messages are
	// not sealed again: a waiting message stops counting when it is delivered, and a dead letter when it is replayed.
	Messages int
}

// NeedsKey reports whether a key is needed to open records or messages, or may be needed for content that the run could
// not read. External events and late completions are not counted: they need the key until their retention is over.
func (r *Report) NeedsKey(id uint32) bool { return r.InUse[id] != (Use{}) || r.Unseen != (Use{}) }

// Resealer seals the content of records under the first key of the ring if it is under another key, or not sealed. Any
// number of nodes may run a resealer at the same time: each record is replaced by compare-and-set, and a record that
// its owner changed in between is left for the next run. It is a worker like the workers of package janitor.
type Resealer struct {
	store    *Store
	config   ResealerConfig
	rewriter store.Rewriter
	lister   store.Lister
}

// NewResealer returns a resealer. The store inside must be a [store.Rewriter] and a [store.Lister]; if it is not, the
// error is [errors.ErrUnsupported].
func NewResealer(s *Store, config ResealerConfig) (*Resealer, error) {
	if s.openOnly {
		return nil, errors.New("sealed: a store with Config.OpenOnly seals nothing")
	}
	if config.Interval < 0 || config.Batch < 0 || config.Batch > store.MaxPage {
		return nil, fmt.Errorf("sealed: interval %s and batch %d: neither may be negative, and a batch has %d at most",
			config.Interval, config.Batch, store.MaxPage)
	}
	if config.Interval == 0 {
		config.Interval = DefaultInterval
	}
	if config.Batch == 0 {
		config.Batch = DefaultBatch
	}
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	rewriter, rewrites := store.As[store.Rewriter](s.Unwrap())
	lister, lists := store.As[store.Lister](s.Unwrap())
	if !rewrites || !lists {
		return nil, fmt.Errorf("sealed: a %T cannot be looked through and rewritten, it is no store.Rewriter or no "+
			"store.Lister: %w", s.Unwrap(), errors.ErrUnsupported)
	}
	return &Resealer{s, config, rewriter, lister}, nil
}

// Run calls [Resealer.RunOnce] repeatedly until the context ends, and then returns nil. Failures are logged, and do not
// end it.
func (r *Resealer) Run(ctx context.Context) error {
	failures := 0
	for {
		if err := r.guarded(ctx); err == nil {
			failures = 0
		} else if ctx.Err() == nil {
			failures++
			r.config.Logger.ErrorContext(ctx, "sealed: cannot reseal", "error", err, "failures", failures)
		}
		pause := r.config.Interval
		if failures > 0 {
			pause = backoff.Exponential(pause/16, pause, failures)
		}
		if !backoff.Sleep(ctx, pause-rand.N(pause/5+1)) {
			return nil
		}
	}
}

// guarded runs once. A panic, of the store or of Progress, is a failure like any other.
func (r *Resealer) guarded(ctx context.Context) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("sealed: panic: %v\n%s", p, debug.Stack())
		}
	}()
	_, err = r.RunOnce(ctx)
	return err
}

// RunOnce processes all records and all messages once. With an error, the report covers the work before the error.
func (r *Resealer) RunOnce(ctx context.Context) (Report, error) {
	report := Report{InUse: make(map[uint32]Use)}
	err := r.records(ctx, &report)
	if err == nil {
		err = r.messages(ctx, &report)
	}
	if err != nil {
		return report, err
	}
	for id := range r.store.ring.keys {
		if id != r.store.ring.first.id && !report.NeedsKey(id) {
			r.config.Logger.InfoContext(ctx, "sealed: no record and no message is under this key any more; external events "+
				"and late completions need it until their retention is over", "key", id)
		}
	}
	return report, nil
}

// storeTimeout bounds the listing of a page, the work on one record, and the reading of one page of messages: the
// machine of the store may disappear without closing its connections, and the loop must continue.
const storeTimeout = time.Minute

// records processes all records, page by page.
func (r *Resealer) records(ctx context.Context, report *Report) error {
	filter := store.Filter{Limit: r.config.Batch}
	for {
		last, err := r.page(ctx, filter, report)
		if err != nil {
			return err
		}
		if r.config.Progress != nil {
			r.config.Progress(*report)
		}
		if last == (store.ID{}) {
			return nil
		}
		filter.After = last
	}
}

// page processes one page and returns its last ID, or none if there are no more.
func (r *Resealer) page(ctx context.Context, f store.Filter, report *Report) (last store.ID, err error) {
	page, err := r.list(ctx, f)
	if err != nil {
		return last, err
	}
	for i := range page {
		report.Records++
		if err := r.record(ctx, &page[i], report); err != nil {
			return last, err
		}
	}
	if len(page) == f.Limit {
		last = page[len(page)-1].ID
	}
	return last, nil
}

func (r *Resealer) list(ctx context.Context, f store.Filter) ([]store.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	return r.lister.List(ctx, f)
}

// record seals one record under the first key if needed, and counts its content.
func (r *Resealer) record(ctx context.Context, listed *store.Record, report *Report) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	if listed.Version == 0 {
		report.Unreadable++
		report.Unseen.Records++
		return nil
	}
	if listed.State == store.StateExpired {
		return nil // it has no content
	}
	rec, err := r.store.Unwrap().Get(ctx, listed.ID)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil
	case errors.Is(err, store.ErrUnreadable):
		report.Unreadable++
		report.Unseen.Records++
		return nil
	case err != nil:
		return err
	}
	held := rec.Content()
	use := usesOf(&held)
	if !use.plain && !use.unseen && use.under(r.store.ring.first.id) {
		report.count(use)
		return nil
	}
	resealed, opened, err := r.reseal(ctx, rec)
	switch {
	case errors.Is(err, store.ErrUnreadable), errors.Is(err, store.ErrFenced):
		resealed = held // it has changed since: the next run reseals it
	case err != nil:
		return err
	case !resealed.Equal(&held):
		report.Resealed++
	}
	if !opened || errors.Is(err, store.ErrUnreadable) {
		report.Unreadable++
	}
	report.count(usesOf(&resealed))
	return nil
}

// reseal replaces the content of a record by the same content under the first key. Content that cannot be opened is not
// changed.
func (r *Resealer) reseal(ctx context.Context, rec store.Record) (resealed store.Content, opened bool, err error) {
	held := rec.Content()
	answer, data := r.store.openContent(&rec)
	opened = answer == nil && data == nil
	c := store.Claim{ID: rec.ID, Attempt: rec.Attempt}
	if resealed, err = r.store.sealContent(c, rec.Content()); err != nil {
		return resealed, opened, err
	}
	if answer != nil {
		resealed.Response = held.Response
	}
	if data != nil {
		resealed.Data = held.Data
	}
	if resealed.Equal(&held) {
		return resealed, opened, nil
	}
	return resealed, opened, r.rewriter.Rewrite(ctx, c, held, resealed)
}

// messages counts the keys of all messages.
func (r *Resealer) messages(ctx context.Context, report *Report) error {
	box, ok := store.As[outbox.Store](r.store.Unwrap())
	if !ok {
		return nil
	}
	for filter := (outbox.Filter{Limit: r.config.Batch}); ; {
		entries, err := r.entries(ctx, box, filter)
		if err != nil {
			return err
		}
		for i := range entries {
			report.countMessage(entries[i].Payload)
			if answer := entries[i].Answer; len(answer) > 0 {
				report.countMessage(answer)
			}
		}
		if len(entries) < filter.Limit {
			return nil
		}
		filter.After = entries[len(entries)-1].ID
	}
}

// countMessage counts the payload or the answer of a message.
func (r *Report) countMessage(content []byte) {
	id, known := keyOf(content)
	switch {
	case known:
		use := r.InUse[id]
		use.Messages++
		r.InUse[id] = use
	case store.IsSealed(content):
		r.Unseen.Messages++
	default:
		r.Plain.Messages++
	}
}

func (r *Resealer) entries(ctx context.Context, box outbox.Store, f outbox.Filter) ([]outbox.Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	return box.Messages(ctx, f)
}

// uses holds the keys under which the content of a record is sealed.
type uses struct {
	keys   map[uint32]bool
	plain  bool
	unseen bool // the key of a part is not known
}

// under reports whether no part of the content is under a key other than id.
func (u *uses) under(id uint32) bool {
	return len(u.keys) == 0 || len(u.keys) == 1 && u.keys[id]
}

// usesOf returns the keys of content.
func usesOf(c *store.Content) uses {
	u := uses{keys: make(map[uint32]bool)}
	add := func(value []byte) {
		id, known := keyOf(value)
		switch {
		case known:
			u.keys[id] = true
		case store.IsSealed(value):
			u.unseen = true
		default:
			u.plain = true
		}
	}
	switch {
	case c.Response.Status == 0:
	case c.Response.IsSealed():
		add([]byte(c.Response.Header[0].Value))
		if len(c.Response.Body) > 0 {
			add(c.Response.Body)
		}
	default:
		u.plain = true
	}
	if len(c.Data) > 0 {
		add(c.Data)
	}
	return u
}

// count counts a record.
func (r *Report) count(u uses) {
	for id := range u.keys {
		use := r.InUse[id]
		use.Records++
		r.InUse[id] = use
	}
	if u.plain {
		r.Plain.Records++
	}
	if u.unseen {
		r.Unseen.Records++
	}
}
