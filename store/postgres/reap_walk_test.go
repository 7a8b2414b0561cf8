package postgres_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// fullRound is how long a round takes in tables that are new.
const fullRound = time.Hour

// walked is a table of records with more pages than are walked through by each call of the reaper, whatever the time is.
type walked struct {
	testing.TB
	store *postgres.Store
	admin *pgxpool.Pool
	pages int
}

// newWalked makes a table of which each page holds a few records, all of them completed and none expired, and a clock
// that stands still: a call ends after two seconds, which are not much for a machine that is busy.
func newWalked(t testing.TB) *walked {
	t.Helper()
	url := servers.Postgres(t).SchemaURL(t)
	w := &walked{TB: t, store: openStore(t, url), admin: openAdmin(t, url)}
	complete(t, w.store, own(t, w.store, reservation("sample")), "done")
	// Such an answer is neither compressed nor moved out: four records fill a page.
	exec(t, w.admin, `INSERT INTO onceward_record (id, attempt, due, retention, status, body, state, version, fingerprint, operation, scope, key)
		SELECT md5(i::text)::uuid, attempt, onceward_now() + 86400000000, retention, status,
			(SELECT string_agg(sha256(int8send(j)), '') FROM generate_series(1, 58) AS j), state, version, fingerprint, operation, scope, key
		FROM generate_series(1, 12000) AS i, (SELECT * FROM onceward_record WHERE state = 20) AS sample`)
	w.pages = number(t, w.admin, `SELECT pg_relation_size('onceward_record') / current_setting('block_size')::bigint`)
	exec(t, w.admin, `CREATE SEQUENCE looks`)
	w.haste(0)
	return w
}

// expire lets every so many-th record expire, and says how many they are.
func (w *walked) expire(each int) int {
	w.Helper()
	tag, err := w.admin.Exec(w.Context(),
		`UPDATE onceward_record SET due = 1 WHERE state = 20 AND abs(hashtext(id::text)) % $1 = 0`, each)
	must(w, err)
	return int(tag.RowsAffected())
}

// place puts the reaper on a page, with so much time gone by since it was as far as it should be.
func (w *walked) place(page int, ago time.Duration) {
	w.Helper()
	exec(w, w.admin, `UPDATE onceward_walk SET page = $1, walked = onceward_now() - $2`, page, ago.Microseconds())
}

// page is where the reaper is.
func (w *walked) page() int { return number(w, w.admin, `SELECT page FROM onceward_walk`) }

func (w *walked) reap(limit int) int {
	w.Helper()
	n, err := w.store.Reap(w.Context(), limit, false)
	must(w, err)
	return n
}

// left counts the records that are due.
func (w *walked) left() int {
	return number(w, w.admin, `SELECT count(*) FROM onceward_record WHERE state = 20 AND due = 1`)
}

const all = 1_000_000

// TestWalk: how far the reaper goes follows from the time, and nothing is left out on its way.
func TestWalk(t *testing.T) {
	t.Parallel()
	w := newWalked(t)
	w.place(0, 0)
	if w.reap(all); w.page() > 100 {
		t.Errorf("B2: a call for which it is not time yet goes to page %d of %d", w.page(), w.pages)
	}
	w.place(100, fullRound*9/10)
	w.reap(all)
	if want := 100 + w.pages*9/10; w.page() < want-1 || w.page() > want+100 {
		t.Errorf("B2: after nine tenths of a round it is on page %d of %d, want %d", w.page(), w.pages, want)
	}
	due := w.expire(7)
	w.place(w.pages-10, 100*fullRound)
	if n := w.reap(all); n != due || w.left() != 0 {
		t.Errorf("B2: a round removed %d records of %d, and %d are left", n, due, w.left())
	}
	if now := w.page(); now != w.pages-10 {
		t.Errorf("B2: a round from page %d on ends on page %d", w.pages-10, now)
	}
	if kept := number(t, w.admin, `SELECT count(*) FROM onceward_record WHERE state = 20`); kept != 12001-due {
		t.Errorf("I2: %d records are left, want %d", kept, 12001-due)
	}
}

// TestPaceOfTheWalk: a round takes longer where records are kept for longer, within bounds.
func TestPaceOfTheWalk(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it fills a table; TestWalk does too")
	w := newWalked(t)
	const half = 30 * time.Minute
	for _, c := range []struct {
		kept time.Duration
		want int // pages in half an hour
	}{
		{time.Second, w.pages},
		{12 * time.Hour, w.pages},
		{24 * time.Hour, w.pages / 2},
		{20 * time.Hour, w.pages * 3 / 5},
		{10 * 365 * 24 * time.Hour, w.pages / 48},
	} {
		w.place(0, half)
		exec(t, w.admin, `UPDATE onceward_walk SET kept = $1`, c.kept.Microseconds())
		w.reap(all)
		if w.page() < c.want || w.page() > c.want+20 {
			t.Errorf("B2: half an hour where records are kept for %s is %d of %d pages, want %d", c.kept, w.page(), w.pages, c.want)
		}
	}
	exec(t, w.admin, `UPDATE onceward_walk SET kept = 86400000000`)
	w.expire(1)
	exec(t, w.admin, `UPDATE onceward_record SET retention = 864000000000 WHERE state = 20`)
	for w.left() > 0 {
		w.place(w.page(), 24*time.Hour)
		w.reap(1000)
	}
	const most = 10 * 24 * time.Hour
	kept := time.Duration(number(t, w.admin, `SELECT kept FROM onceward_walk`)) * time.Microsecond
	if kept < most/2 || kept > most {
		t.Errorf("B2: records that are kept for %s were removed, and are thought to be kept for %s", most, kept)
	}
}

// TestWalkInBatches: what a call leaves because it has removed so many is for the next one, at once.
func TestWalkInBatches(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it fills a table; TestWalk does too")
	w := newWalked(t)
	due := w.expire(3)
	w.place(1000, fullRound)
	calls := 0
	for n := 100; n == 100; calls++ {
		n = w.reap(100)
	}
	if w.left() != 0 || calls != due/100+1 {
		t.Errorf("B2: after %d calls %d of %d records are left", calls, w.left(), due)
	}
}

// TestWalkFromAnywhere: whatever is in the table that holds the reaper's place, all that is due is removed.
func TestWalkFromAnywhere(t *testing.T) {
	t.Parallel()
	for name, put := range map[string]string{
		"a table that has shrunk":       `UPDATE onceward_walk SET page = 4000000000, walked = 0`,
		"a clock that has stepped back": `UPDATE onceward_walk SET page = 5, walked = onceward_now() + 1000000000000000`,
		"no row":                        `DELETE FROM onceward_walk`,
		"a page before the first one":   `UPDATE onceward_walk SET page = -5`,
		"the end of time":               `UPDATE onceward_walk SET walked = 9223372036854775807`,
		"the beginning of time":         `UPDATE onceward_walk SET walked = -9223372036854775808`,
		"a retention without an end":    `UPDATE onceward_walk SET kept = 9223372036854775807`,
		"a retention below zero":        `UPDATE onceward_walk SET kept = -9223372036854775808`,
	} {
		t.Run(name, func(t *testing.T) {
			among(t, name, "a table that has shrunk", "no row")
			t.Parallel()
			url := servers.Postgres(t).SchemaURL(t)
			s, admin := openStore(t, url), openAdmin(t, url)
			lapsed(t, s, "old", "older")
			exec(t, admin, put)
			if n, err := s.Reap(t.Context(), 10, false); err != nil || n != 2 {
				t.Errorf("B2: reaped (%d, %v), want 2", n, err)
			}
			if n := number(t, admin, `SELECT count(*) FROM onceward_walk WHERE walked > onceward_now()`); n != 0 {
				t.Error("the clock of the walk is ahead")
			}
		})
	}
}

// haste lets the clock go on by so much with each look at it.
func (w *walked) haste(step time.Duration) {
	w.Helper()
	exec(w, w.admin, fmt.Sprintf(`CREATE OR REPLACE FUNCTION onceward_now() RETURNS bigint LANGUAGE sql VOLATILE
		AS 'SELECT %s + nextval(''looks'') * %d'`, firstMoment, step.Microseconds()))
}

// TestWalkWithoutAPlace: the end of a table that is not walked through in two seconds is reached also where the place of
// the reaper cannot be kept.
func TestWalkWithoutAPlace(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it fills a table; TestWalk does too")
	w := newWalked(t)
	exec(t, w.admin, `DELETE FROM onceward_walk`)
	exec(t, w.admin, `UPDATE onceward_record SET due = 1 WHERE state = 20 AND ctid >= '(2900,0)'`)
	w.haste(400 * time.Millisecond)
	for call := 0; w.left() > 0; call++ {
		if call == 100 { // each reaches a given page with a chance of one in five
			t.Fatalf("B2: after %d calls %d records are left", call, w.left())
		}
		w.reap(all)
	}
}

// TestTwoSecondsOfWalk: a call ends after two seconds also if its pages come so slowly that it has read few.
func TestTwoSecondsOfWalk(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it fills a table; TestWalk does too")
	w := newWalked(t)
	w.haste(time.Second)
	w.place(0, fullRound)
	if w.reap(all); w.page() == 0 || w.page() >= w.pages/2 {
		t.Errorf("B2: a call of two seconds ends on page %d", w.page())
	}
}

// TestWalkWithinATimeout: a call ends before a time-out of the role undoes it, so that the next one goes on from there.
func TestWalkWithinATimeout(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it fills a table; TestWalk does too")
	w := newWalked(t)
	w.place(0, fullRound)
	exec(t, w.admin, `CREATE OR REPLACE FUNCTION onceward_now() RETURNS bigint LANGUAGE sql VOLATILE
		AS 'SELECT pg_sleep(0.2); SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint'`)
	// A machine that is busy may undo some calls. A walk that did not look at the time-out would always be undone.
	await.Success(t, "B2: a call that may take two seconds ends", func() error {
		return pgx.BeginFunc(t.Context(), w.admin, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `SET LOCAL statement_timeout = '2s'`)
			if err == nil {
				_, err = tx.Exec(t.Context(), `SELECT onceward_reap()`)
			}
			return err
		})
	})
	if w.page() == 0 {
		t.Error("B2: a call that may take two seconds ends on the first page")
	}
}

// TestNobodyWaitsForTheWalk: a key that has expired can be used again, and a row that refers to its record be written, while
// the reaper is on its way through pages that come slowly.
func TestNobodyWaitsForTheWalk(t *testing.T) {
	t.Parallel()
	w := newWalked(t)
	r := reservation("daily")
	complete(t, w.store, own(t, w.store, r), "yesterday's")
	exec(t, w.admin, `UPDATE onceward_record SET due = 1 WHERE id = $1`, w.store.RecordID(r.ID))
	page := number(t, w.admin, `SELECT (ctid::text::point)[0]::integer FROM onceward_record WHERE due = 1`)
	w.place(page, fullRound)
	exec(t, w.admin, `CREATE TABLE gate (); INSERT INTO gate DEFAULT VALUES`)
	exec(t, w.admin, `CREATE OR REPLACE FUNCTION onceward_now() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
	BEGIN
		IF current_setting('onceward.slow', true) = 'yes' THEN
			IF (SELECT last_value FROM looks) > 2 THEN
				PERFORM FROM gate FOR UPDATE; -- the test lets it pass
			END IF;
			RETURN `+firstMoment+` + nextval('looks') * 300000;
		END IF;
		RETURN `+firstMoment+`;
	END
	$$`)
	exec(t, w.admin, `ALTER SEQUENCE looks RESTART WITH 1`)
	gate := holding(t, w.admin, `SELECT FROM gate FOR UPDATE`)
	walk := make(chan error, 1)
	go func() {
		walk <- pgx.BeginFunc(t.Context(), w.admin, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `SET LOCAL onceward.slow = 'yes'`)
			if err == nil {
				_, err = tx.Exec(t.Context(), `SELECT onceward_reap()`)
			}
			return err
		})
	}()
	await.That(t, "the walk has come past the record", func() bool {
		return number(t, w.admin, `SELECT last_value FROM looks`) > 2
	})
	own(t, w.store, r)
	select {
	case err := <-walk:
		t.Fatalf("B2: the key was not free before the walk had ended (%v)", err)
	default:
	}
	must(t, gate.Rollback(t.Context()))
	must(t, await.Value(t, "the walk", walk))
	if n := number(t, w.admin, `SELECT count(*) FROM onceward_record WHERE state = 10`); n != 1 {
		t.Errorf("I12: %d records are in progress, want the one that was made again", n)
	}
}

// TestOneWalks: while one reaper is at it, another one waits for nothing and does nothing, and what a reaper that was
// undone had removed is there again.
func TestOneWalks(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	s, admin := openStore(t, url), openAdmin(t, url)
	lapsed(t, s, "first", "second")
	tx, err := admin.Begin(t.Context())
	must(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }() // if it was not reached below
	var n int
	must(t, tx.QueryRow(t.Context(), `SELECT onceward_reap(1)`).Scan(&n))
	if n != 1 {
		t.Errorf("B2: the first removed %d, want 1", n)
	}
	if n, err := s.Reap(t.Context(), 10, false); err != nil || n != 0 {
		t.Errorf("B2: the second reaped (%d, %v) meanwhile, want nothing", n, err)
	}
	must(t, tx.Rollback(t.Context()))
	if n, err := s.Reap(t.Context(), 10, false); err != nil || n != 2 {
		t.Errorf("B2: afterwards it reaped (%d, %v), want 2", n, err)
	}
}

// TestCounts: records are counted in all states, and ballast is not.
func TestCounts(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	s, admin := openStore(t, url), openAdmin(t, url)
	want := map[store.State]int64{}
	for i, state := range []int{10, 11, 20, 20, 20, 30, 40, 41, 50} {
		exec(t, admin, fmt.Sprintf(`INSERT INTO onceward_record (id, attempt, due, retention, state, version, fingerprint, operation, scope, key)
			VALUES (md5('%d')::uuid, 1, 1, 1, %d, 1, '', '', '', '')`, i, state))
		want[store.State(state/10)]++
	}
	stats, err := s.Stats(t.Context())
	must(t, err)
	for state, n := range want {
		if stats.Records[state] != n {
			t.Errorf("section 11: %d records are %s, want %d", stats.Records[state], state, n)
		}
	}
	if stats.DeadLetters != 1 {
		t.Errorf("section 11: %d dead letters, want 1", stats.DeadLetters)
	}
}
