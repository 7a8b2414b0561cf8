package postgres_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// damages are what can be wrong with a row, each as what is done to its columns.
var damages = map[string]string{
	"a newer version":              `version = 2`,
	"the newest version":           `version = 32767`,
	"no version":                   `version = 0`,
	"no fingerprint":               `fingerprint = ''`,
	"a fingerprint that is cut":    `fingerprint = substr(fingerprint, 1, 20)`,
	"a retention below zero":       `retention = -1`,
	"an unknown state":             `state = 90`,
	"no status":                    `status = 0`,
	"a header that ends too early": `header = '\x05ff'`,
}

// damaged is a store with records of which some are damaged.
type damaged struct {
	*testing.T
	store *postgres.Store
	admin *pgxpool.Pool
}

func newDamaged(t *testing.T) *damaged {
	t.Helper()
	url := servers.Postgres(t).SchemaURL(t)
	return &damaged{T: t, store: openStore(t, url), admin: openAdmin(t, url)}
}

// damage changes the columns of a record.
func (d *damaged) damage(key, how string) {
	d.Helper()
	exec(d, d.admin, `UPDATE onceward_record SET `+how+` WHERE id = $1`, d.store.RecordID(idOf(key)))
}

// print is the row as it stands.
func (d *damaged) print(key string) (text string) {
	d.Helper()
	must(d, d.admin.QueryRow(d.Context(), `SELECT r::text FROM onceward_record r WHERE id = $1`,
		d.store.RecordID(idOf(key))).Scan(&text))
	return text
}

// wantUnreadable asks for a damaged record in all ways, none of which may change it.
func (d *damaged) wantUnreadable(c store.Claim, what string) {
	d.Helper()
	before := d.print(c.Key)
	_, reserveErr := d.store.Reserve(d.Context(), reservation(c.Key))
	_, transactErr := d.store.Transact(d.Context(), reservation(c.Key), func(context.Context, store.Verdict) store.Settlement {
		d.Errorf("S8: %s: the work was executed", what)
		return store.Settlement{}
	})
	_, getErr := d.store.Get(d.Context(), c.ID)
	_, completeErr := d.store.Complete(d.Context(), c, answer("late"))
	for name, err := range map[string]error{
		"reserve": reserveErr, "transact": transactErr, "get": getErr, "complete": completeErr,
		"extend":  d.store.Extend(d.Context(), c, time.Minute),
		"release": d.store.Release(d.Context(), c, ""), "abandon": d.store.Abandon(d.Context(), c, ""),
		"resolve": d.store.ResolveCompleted(d.Context(), c, answer("x")), "bust": d.store.Bust(d.Context(), c.ID, true),
	} {
		if !errors.Is(err, store.ErrUnreadable) {
			d.Errorf("S8: %s: %s got %v, want ErrUnreadable", what, name, err)
		}
	}
	if after := d.print(c.Key); after != before {
		d.Errorf("S8: %s: the row is\n%s, want it as before\n%s", what, after, before)
	}
}

// TestDamagedRows: what cannot be read is neither replayed nor executed again, nor changed.
func TestDamagedRows(t *testing.T) {
	t.Parallel()
	d := newDamaged(t)
	for what, how := range damages {
		c := own(t, d.store, reservation(what))
		complete(t, d.store, c, "done")
		d.damage(what, how)
		d.wantUnreadable(c, what)
	}
}

// TestDamagedRowsAreListed: one that cannot be read keeps no caller from the others, and is listed as such.
func TestDamagedRowsAreListed(t *testing.T) {
	t.Parallel()
	d := newDamaged(t)
	for _, key := range []string{"damaged", "whole"} {
		must(t, d.store.Abandon(t.Context(), own(t, d.store, reservation(key)), "lost"))
	}
	d.damage("damaged", damages["no fingerprint"])
	page, err := d.store.List(t.Context(), store.Filter{State: store.StateUnknown})
	must(t, err)
	listed := map[string]store.Record{}
	for _, rec := range page {
		listed[rec.Key] = rec
	}
	if len(page) != 2 || listed["whole"].Version != store.RecordVersion {
		t.Errorf("S8: %d records were listed, want the whole one and the damaged one", len(page))
	}
	if rec := listed["damaged"]; rec.Version != 0 || rec.State != store.StateUnknown ||
		!strings.Contains(rec.LastError, "unreadable") {
		t.Errorf("S8: the damaged one is listed as version %d, %s: %s", rec.Version, rec.State, rec.LastError)
	}
	if _, err := d.store.Stats(t.Context()); err != nil {
		t.Errorf("S8: the counts got %v", err)
	}
}

// TestDamagedRowsInProgress: the same for those that an owner still works on, whom a damaged row must not serve either.
func TestDamagedRowsInProgress(t *testing.T) {
	t.Parallel()
	d := newDamaged(t)
	for _, what := range []string{"a newer version", "no version", "an unknown state"} {
		c := own(t, d.store, reservation(what))
		d.damage(what, damages[what])
		d.wantUnreadable(c, what)
	}
}

// TestBackgroundLeavesNewerRows: neither the sweeper nor the reaper touches what a newer program wrote, and it does not
// hold them up.
func TestBackgroundLeavesNewerRows(t *testing.T) {
	t.Parallel()
	for what, how := range damages {
		switch what {
		case "a newer version", "the newest version", "no version":
		default:
			continue
		}
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			d := newDamaged(t)
			for _, key := range []string{"newer", "ours"} {
				lost, old := reservation(key+" lost"), reservation(key+" old")
				lost.Lease, old.Retention = time.Microsecond, time.Microsecond
				own(t, d.store, lost)
				complete(t, d.store, own(t, d.store, old), "done")
			}
			d.damage("newer lost", how)
			d.damage("newer old", how)
			lost, old := d.print("newer lost"), d.print("newer old")
			if n, err := d.store.Sweep(t.Context(), 10); err != nil || n != 1 {
				t.Errorf("S8: swept (%d, %v), want the one that can be read", n, err)
			}
			for _, soft := range []bool{true, false} {
				if n, err := d.store.Reap(t.Context(), 10, soft); err != nil || n != 1 {
					t.Errorf("S8: reaped (%d, %v) with soft %t, want the one that can be read", n, err, soft)
				}
			}
			if d.print("newer lost") != lost || d.print("newer old") != old {
				t.Error("S8: a row of a newer version was changed")
			}
			wantState(t, d.store, "ours lost", store.StateUnknown, "S8")
		})
	}
}

// TestDamagedNeighbour: a damaged row fails only those who ask for it, not those who travel with them.
func TestDamagedNeighbour(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	proxy := servers.NewProxy(t, url)
	s := openUnasked(t, proxy.URL(), postgres.OneLane())
	d := &damaged{T: t, store: s, admin: openAdmin(t, url)}
	var broken []string
	for what, how := range damages {
		complete(t, s, own(t, s, reservation(what)), "done")
		d.damage(what, how)
		broken = append(broken, what)
	}
	fine := keys("fine", len(broken))
	gather(t, s, proxy, 2*len(broken), func(ctx context.Context, i int) {
		if i%2 == 0 {
			ownIn(ctx, t, s, reservation(fine[i/2]))
			return
		}
		if _, err := s.Reserve(ctx, reservation(broken[i/2])); !errors.Is(err, store.ErrUnreadable) {
			t.Errorf("S8: %s got %v, want ErrUnreadable", broken[i/2], err)
		}
	})
}
