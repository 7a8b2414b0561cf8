package memory

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/onceward/onceward"
)

// The store promises these too.
var (
	_ onceward.FindingKeeper = (*Store)(nil)
	_ onceward.NoticeKeeper  = (*Store)(nil)
	_ onceward.Auditor       = (*Store)(nil)
)

// evidence is what is kept beside the records. The lists are in the order in which they were added to.
type evidence struct {
	findings map[onceward.ID][]onceward.Finding
	notices  []onceward.Notice
	audit    []onceward.AuditEntry
}

// kept is a time as every store keeps it.
func kept(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

// AddFinding implements [onceward.FindingKeeper].
func (s *Store) AddFinding(ctx context.Context, f onceward.Finding) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.findings[f.ID] = append(s.findings[f.ID], f)
	return nil
}

// Findings implements [onceward.FindingKeeper].
func (s *Store) Findings(ctx context.Context, id onceward.ID) ([]onceward.Finding, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.findings[id]), nil
}

// AddNotice implements [onceward.NoticeKeeper].
func (s *Store) AddNotice(ctx context.Context, n onceward.Notice) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n.AnyScope {
		n.Scope = ""
	}
	known := slices.ContainsFunc(s.notices, func(other onceward.Notice) bool {
		return other.Source == n.Source && other.AnyScope == n.AnyScope && other.Scope == n.Scope && other.EventID == n.EventID
	})
	if known {
		return false, nil
	}
	n.At, n.ReceivedAt = kept(n.At), kept(s.now())
	n.Body = bytes.Clone(n.Body)
	s.notices = append(s.notices, n)
	return true, nil
}

// Notices implements [onceward.NoticeKeeper].
func (s *Store) Notices(ctx context.Context, f onceward.NoticeFilter) ([]onceward.Notice, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []onceward.Notice
	for _, n := range s.notices {
		if n.Source == f.Source && n.MaySettle(f.Scope) && slices.Contains(f.Subjects, n.Subject) {
			found = append(found, n)
		}
	}
	slices.SortFunc(found, func(a, b onceward.Notice) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.EventID, b.EventID))
	})
	return found, nil
}

// PurgeNotices implements [onceward.NoticeKeeper].
func (s *Store) PurgeNotices(ctx context.Context, age time.Duration, limit int) (purged int, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notices, purged = purge(s.notices, s.now().Add(-age), limit, func(n *onceward.Notice) time.Time { return n.ReceivedAt })
	return purged, nil
}

// AddAudit implements [onceward.Auditor].
func (s *Store) AddAudit(ctx context.Context, e onceward.AuditEntry) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e.At = kept(s.now())
	s.audit = append(s.audit, e)
	return nil
}

// Audit implements [onceward.Auditor].
func (s *Store) Audit(ctx context.Context, id onceward.ID) ([]onceward.AuditEntry, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []onceward.AuditEntry
	for _, e := range s.audit {
		if e.ID == id {
			found = append(found, e)
		}
	}
	return found, nil
}

// PurgeAudit implements [onceward.Auditor].
func (s *Store) PurgeAudit(ctx context.Context, age time.Duration, limit int) (purged int, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.audit, purged = purge(s.audit, s.now().Add(-age), limit, func(e *onceward.AuditEntry) time.Time { return e.At })
	return purged, nil
}

// purge removes at most limit entries from before a moment, the first ones first.
func purge[T any](list []T, before time.Time, limit int, at func(*T) time.Time) (rest []T, purged int) {
	rest = slices.DeleteFunc(list, func(one T) bool {
		old := purged < limit && at(&one).Before(before)
		if old {
			purged++
		}
		return old
	})
	return rest, purged
}
