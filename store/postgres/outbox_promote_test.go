package postgres_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/postgres"
)

// outboxTest is an outbox, with a connection that changes its tables past the store.
type outboxTest struct {
	testing.TB
	url   string
	store *postgres.Store
	box   *outbox.Outbox
	admin *pgxpool.Pool
}

// newOutboxTest opens a store, with parameters that are added to its URL.
func newOutboxTest(t testing.TB, parameters string) *outboxTest {
	t.Helper()
	url := servers.Postgres(t).SchemaURL(t)
	store, err := postgres.Open(t.Context(), url+parameters, quiet, patient)
	must(t, err)
	t.Cleanup(func() { must(t, store.Close()) })
	box, err := outbox.New(store, outbox.Config{})
	must(t, err)
	return &outboxTest{t, url, store, box, openAdmin(t, url)}
}

// add adds messages of one aggregate, each in a transaction of its own.
func (u *outboxTest) add(topic, aggregate string, kinds ...string) (ids []string) {
	u.Helper()
	for _, kind := range kinds {
		must(u, u.store.InTx(u.Context(), func(ctx context.Context) error {
			id, err := postgres.AddMessage(ctx, u.box, postgres.Tx(ctx),
				outbox.Message{Topic: topic, AggregateID: aggregate, Type: kind})
			ids = append(ids, id)
			return err
		}))
	}
	return ids
}

// claim returns the types of what could be taken.
func (u *outboxTest) claim() (kinds []string) {
	u.Helper()
	kinds, err := u.tryClaim("topic")
	must(u, err)
	return kinds
}

func (u *outboxTest) tryClaim(topic string) (kinds []string, err error) {
	claimed, err := u.store.ClaimMessages(u.Context(), []outbox.ClaimRequest{{Topic: topic, Limit: 10}}, time.Minute)
	for i := range claimed {
		kinds = append(kinds, claimed[i].Type)
	}
	return kinds, err
}

func (u *outboxTest) wantClaimed(got []string, want ...string) {
	u.Helper()
	if !slices.Equal(got, want) {
		u.Errorf("O2: %q were claimed, want %q", got, want)
	}
}

// promotion returns the statements that promote so many messages and claim none, as a worker does that wants others.
func promotion(most int) string {
	const of = `id, number, lane, due, created_at, origin_attempt, topic, aggregatetype, aggregateid, type, downstream_key,
		attributes, origin_scope, origin_key, payload`
	return fmt.Sprintf(`SELECT pg_advisory_xact_lock('onceward_outbox'::regclass::oid::integer, 0);
		WITH gone AS (DELETE FROM onceward_outbox WHERE number IN (
			SELECT number FROM onceward_outbox WHERE number > 0 ORDER BY number LIMIT %d) RETURNING *)
		INSERT INTO onceward_delivery (%[2]s) SELECT %[2]s FROM gone`, most, of)
}

// TestPromotionUnderWay: while one worker promotes the first message of an aggregate, no worker gets the second; other
// messages are to be had at once. It does not matter how that one ends.
func TestPromotionUnderWay(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]string{"committed": `COMMIT`, "undone": `ROLLBACK`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newOutboxTest(t, "")
			u.add("topic", "1", "there before")
			exec(t, u.admin, promotion(10))
			u.add("topic", "2", "first", "second")
			conn, err := u.admin.Acquire(t.Context())
			must(t, err)
			defer conn.Release()
			for _, statement := range []string{`BEGIN`, promotion(1)} {
				_, err := conn.Exec(t.Context(), statement)
				must(t, err)
			}
			claimed, err := u.store.ClaimMessages(t.Context(), []outbox.ClaimRequest{{Topic: "topic", Limit: 1}}, time.Minute)
			must(t, err)
			if len(claimed) != 1 || claimed[0].Type != "there before" {
				t.Errorf("O2: %+v was claimed, want the message that was there before", claimed)
			}
			late := make(chan error, 1)
			go func() {
				kinds, err := u.tryClaim("topic")
				u.wantClaimed(kinds, "first", "second")
				late <- err
			}()
			awaitLockWait(t, u.url)
			_, err = conn.Exec(t.Context(), end)
			must(t, err)
			must(t, await.Value(t, "the end of the claim", late))
		})
	}
}

// TestPromotedForAnother: a message that is promoted by a worker that does not want it is found by one that does.
func TestPromotedForAnother(t *testing.T) {
	t.Parallel()
	u := newOutboxTest(t, "")
	stop := make(chan struct{})
	var other sync.WaitGroup
	other.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if _, err := u.tryClaim("another topic"); err != nil {
					t.Error(err)
				}
			}
		}
	})
	for range 300 {
		u.add("topic", "", "wanted")
		u.wantClaimed(u.claim(), "wanted")
	}
	close(stop)
	other.Wait()
}

// TestStalledWorker: a worker that does not read what it has claimed keeps the others from nothing else.
func TestStalledWorker(t *testing.T) {
	t.Parallel()
	u := newOutboxTest(t, "")
	exec(t, u.admin, `INSERT INTO onceward_outbox (id, number, lane, due, created_at, origin_attempt, topic, aggregatetype, aggregateid, type,
			downstream_key, attributes, payload)
		SELECT gen_random_uuid(), nextval('onceward_outbox_number'), 0, onceward_now(), onceward_now(), 0, 'large', '', '', 't', '', '{}',
			convert_to(repeat('x', 500000), 'UTF8')
		FROM generate_series(1, 60)`)
	exec(t, u.admin, promotion(100))
	conn, err := u.admin.Acquire(t.Context())
	must(t, err)
	defer conn.Release()
	rows, err := conn.Query(t.Context(), `SELECT payload FROM onceward_outbox_claim('{large}', '{100}', 60000000, 1)`)
	must(t, err)
	defer rows.Close()
	u.add("topic", "1", "small")
	u.wantClaimed(u.claim(), "small")
	if n := number(t, u.admin, `SELECT count(*) FROM onceward_delivery WHERE topic = 'large' AND state = 1`); n != 0 {
		t.Errorf("the claim of large messages has ended, so that the test shows nothing: %d are leased", n)
	}
}

// TestClaimPastOtherTopics: messages for which a worker has no route do not hide those for which it has one, however
// many.
func TestClaimPastOtherTopics(t *testing.T) {
	t.Parallel()
	u := newOutboxTest(t, "")
	exec(t, u.admin, `INSERT INTO onceward_outbox (id, number, lane, due, created_at, origin_attempt, topic, aggregatetype, aggregateid, type,
			downstream_key, attributes, payload)
		SELECT gen_random_uuid(), nextval('onceward_outbox_number'), 0, onceward_now(), onceward_now(), 0, 'other', '', '', 't', '', '{}', ''
		FROM generate_series(1, 2500)`)
	u.add("topic", "1", "wanted")
	u.wantClaimed(u.claim(), "wanted")
	u.wantClaimed(u.claim())
	stats, err := u.store.MessageStats(t.Context())
	must(t, err)
	if stats.Waiting != 2501 {
		t.Errorf("%d messages wait, want 2501", stats.Waiting)
	}
}

// TestClaimedWhilePromoted: new messages are claimed with their promotion only as they would be after it: in the order
// of their lane, whichever topics it holds, when they are due, and no more than are wanted. The first of a lane counts
// an attempt.
func TestClaimedWhilePromoted(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		rows  string // lane, topic and time until due, in the order of their numbers
		limit int
		want  []string
	}{
		"in order":          {`(1, 'topic', 0), (1, 'topic', 0), (2, 'topic', 0)`, 10, []string{"1 of 1", "2 of 0", "3 of 1"}},
		"without an order":  {`(0, 'topic', 0), (0, 'topic', 3600), (0, 'topic', 0)`, 10, []string{"1 of 1", "3 of 1"}},
		"another topic":     {`(1, 'other', 0), (1, 'topic', 0), (3, 'topic', 0)`, 10, []string{"3 of 1"}},
		"the first waits":   {`(1, 'topic', 3600), (1, 'topic', 0), (2, 'topic', 0)`, 10, []string{"3 of 1"}},
		"the second waits":  {`(1, 'topic', 0), (1, 'topic', 3600), (1, 'topic', 0)`, 10, []string{"1 of 1"}},
		"no more than that": {`(1, 'topic', 0), (2, 'topic', 0), (1, 'topic', 0)`, 2, []string{"1 of 1", "2 of 1"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newOutboxTest(t, "")
			exec(t, u.admin, `INSERT INTO onceward_outbox (id, number, lane, due, created_at, origin_attempt, topic, aggregatetype,
					aggregateid, type, downstream_key, attributes, payload)
				SELECT gen_random_uuid(), n, lane, onceward_now() + wait * 1000000::bigint, onceward_now(), 0, topic, '', lane::text, n::text, '', '{}', ''
				FROM (SELECT row_number() OVER () AS n, r.* FROM (VALUES `+c.rows+`) AS r (lane, topic, wait)) AS r`)
			claimed, err := u.store.ClaimMessages(t.Context(), []outbox.ClaimRequest{{Topic: "topic", Limit: c.limit}}, time.Minute)
			must(t, err)
			var got []string
			for i := range claimed {
				got = append(got, fmt.Sprintf("%s of %d", claimed[i].Type, claimed[i].Attempts))
			}
			u.wantClaimed(got, c.want...)
		})
	}
}

// TestCapturedMessages: a worker leaves messages for change-data-capture where they are, and the purge removes those
// that are old enough, and no other.
func TestCapturedMessages(t *testing.T) {
	t.Parallel()
	u := newOutboxTest(t, "")
	captured := u.add("", "1", "old", "young")
	exec(t, u.admin, `UPDATE onceward_outbox SET created_at = created_at - 3600000000 WHERE type = 'old'`)
	waiting := u.add("elsewhere", "1", "not captured")
	exec(t, u.admin, `UPDATE onceward_outbox SET created_at = created_at - 3600000000 WHERE type = 'not captured'`)
	purged, err := u.store.PurgeMessages(t.Context(), time.Minute, 100)
	must(t, err)
	if purged != 1 {
		t.Errorf("O4: %d messages were purged, want the old one", purged)
	}
	u.wantClaimed(u.claim())
	if n := number(t, u.admin, `SELECT count(*) FROM onceward_outbox WHERE type = 'young'`); n != 1 {
		t.Error("O4: a worker has promoted a message for change-data-capture")
	}
	for id, want := range map[string]outbox.State{captured[1]: outbox.StateCaptured, waiting[0]: outbox.StateReady} {
		entries, err := u.store.Messages(t.Context(), outbox.Filter{ID: id})
		must(t, err)
		if len(entries) != 1 || entries[0].State != want {
			t.Errorf("%+v, want one that is %s", entries, want)
		}
	}
}

// TestDamagedMessage: a message that cannot be read becomes a dead letter, and the same claim goes on to the others.
func TestDamagedMessage(t *testing.T) {
	t.Parallel()
	u := newOutboxTest(t, "")
	damaged := u.add("topic", "1", "damaged")[0]
	exec(t, u.admin, `UPDATE onceward_outbox SET attributes = 'not JSON'`)
	u.add("topic", "1", "behind it")
	claimed, err := u.store.ClaimMessages(t.Context(), []outbox.ClaimRequest{{Topic: "topic", Limit: 1}}, time.Minute)
	must(t, err)
	if len(claimed) != 1 || claimed[0].Type != "behind it" {
		t.Errorf("O3: %+v was claimed, want the message behind the damaged one", claimed)
	}
	entries, err := u.store.Messages(t.Context(), outbox.Filter{ID: damaged})
	must(t, err)
	if len(entries) != 1 || entries[0].State != outbox.StateDead {
		t.Errorf("O3: the damaged message is %+v, want a dead letter", entries)
	}
}

// TestMessageAddedTwice: a row that a hand has added twice is one message, and does not keep workers from the others.
func TestMessageAddedTwice(t *testing.T) {
	t.Parallel()
	u := newOutboxTest(t, "")
	u.add("topic", "1", "first")
	twice := `INSERT INTO onceward_outbox SELECT nextval('onceward_outbox_number'), id, lane, due, created_at, origin_attempt, topic, aggregatetype,
		aggregateid, type, downstream_key, attributes, origin_scope, origin_key, payload FROM onceward_outbox`
	exec(t, u.admin, twice)
	u.add("topic", "1", "second")
	u.wantClaimed(u.claim(), "first", "second")
}

// TestMessageAddedAgain: a row that a hand adds again, when its message is done, counts for nothing: the one behind it is
// delivered at its first attempt.
func TestMessageAddedAgain(t *testing.T) {
	t.Parallel()
	u := newOutboxTest(t, "")
	seen := make(chan string, 3)
	worker, err := outbox.NewWorker(u.store, outbox.WorkerConfig{
		Logger: slog.New(slog.DiscardHandler),
		Routes: map[string]outbox.Route{"topic": {Handler: func(_ context.Context, d *outbox.Delivery) (outbox.Result, error) {
			seen <- fmt.Sprintf("%s at attempt %d", d.Type, d.Attempts)
			return outbox.Result{}, nil
		}}},
	})
	must(t, err)
	deliver := func(want string) {
		t.Helper()
		if report, err := worker.RunOnce(t.Context()); err != nil || report.Delivered != 1 {
			t.Fatalf("O2: %+v, %v", report, err)
		}
		if got := <-seen; got != want {
			t.Errorf("O3: %s was delivered, want %s", got, want)
		}
	}
	done := u.add("topic", "1", "first")[0]
	deliver("first at attempt 1")
	exec(t, u.admin, `INSERT INTO onceward_outbox SELECT nextval('onceward_outbox_number'), id, lane, due, created_at, origin_attempt, topic,
		aggregatetype, aggregateid, type, downstream_key, attributes, origin_scope, origin_key, payload FROM onceward_delivery`)
	last := u.add("topic", "1", "second")[0]
	deliver("second at attempt 1")
	if n := number(t, u.admin, `SELECT count(*) FROM onceward_outbox`); n != 0 {
		t.Errorf("%d messages are still new", n)
	}
	for _, id := range []string{done, last} {
		entries, err := u.store.Messages(t.Context(), outbox.Filter{ID: id})
		must(t, err)
		if len(entries) != 1 || entries[0].State != outbox.StateDone || entries[0].Attempts != 1 {
			t.Errorf("O3: the message is %+v, want it done at its first attempt", entries)
		}
	}
}

// TestMessagesOfBothTables: a list has every message once, in the order of their IDs, whether it was promoted or not.
func TestMessagesOfBothTables(t *testing.T) {
	t.Parallel()
	u := newOutboxTest(t, "")
	want := u.add("topic", "1", "a", "b")
	exec(t, u.admin, promotion(10))
	want = append(want, u.add("topic", "1", "c", "d")...)
	slices.Sort(want)
	var got []string
	for after := ""; ; {
		page, err := u.store.Messages(t.Context(),
			outbox.Filter{Topic: "topic", States: []outbox.State{outbox.StateReady}, After: after, Limit: 1})
		must(t, err)
		if len(page) == 0 {
			break
		}
		after = page[0].ID
		got = append(got, after)
	}
	if !slices.Equal(got, want) {
		t.Errorf("the pages hold %q, want %q", got, want)
	}
}

// TestPromotersInParallel: workers that promote and deliver at the same time keep the order of each aggregate.
func TestPromotersInParallel(t *testing.T) {
	t.Parallel()
	u := newOutboxTest(t, "")
	const aggregates, each, workers = 10, 30, 4
	for i := range each {
		must(t, u.store.InTx(t.Context(), func(ctx context.Context) error {
			for a := range aggregates {
				m := outbox.Message{Topic: "topic", AggregateID: fmt.Sprint(a), Type: "t", Payload: []byte{byte(i)}}
				if _, err := postgres.AddMessage(ctx, u.box, postgres.Tx(ctx), m); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	delivered := make(chan *outbox.Delivery, aggregates*each)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	for range workers {
		worker, err := outbox.NewWorker(u.store, delivering(func(_ context.Context, d *outbox.Delivery) (outbox.Result, error) {
			delivered <- d
			return outbox.Result{}, nil
		}))
		must(t, err)
		running.Go(func() {
			if err := worker.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	next := make(map[string]byte)
	for range aggregates * each {
		d := await.Value(t, "the next message", delivered)
		if d.Payload[0] != next[d.AggregateID] {
			t.Errorf("O2: aggregate %s: message %d came when %d was due", d.AggregateID, d.Payload[0], next[d.AggregateID])
		}
		next[d.AggregateID] = d.Payload[0] + 1
	}
}

// TestFreeingLocksInOrder: messages are freed in the order of their ids, in which they are finished too, wherever they
// lie: so no worker that finishes some and one that frees others stand in each other's way for good.
func TestFreeingLocksInOrder(t *testing.T) {
	t.Parallel()
	u := newOutboxTest(t, "&deadlock_timeout=50ms&lock_timeout=1h")
	u.add("topic", "1", "first", "second")
	exec(t, u.admin, promotion(10))
	// A worker died before it could free them; where they lie, the first is last.
	for _, kind := range []string{"second", "first"} {
		exec(t, u.admin, `UPDATE onceward_delivery SET state = 2 WHERE type = $1`, kind)
	}
	u.lockBoth(func() error {
		_, err := u.store.FreeMessages(t.Context())
		return err
	})
	u.wantClaimed(u.claim(), "first", "second")
}

// TestFinishingLocksInOrder: the same holds for those that are finished, whatever else there is and whenever they are
// due.
func TestFinishingLocksInOrder(t *testing.T) {
	t.Parallel()
	u := newOutboxTest(t, "&deadlock_timeout=50ms&lock_timeout=1h")
	exec(t, u.admin, `INSERT INTO onceward_delivery (id, number, lane, due, created_at, origin_attempt, state, topic, aggregatetype, aggregateid, type,
			downstream_key, attributes, payload)
		SELECT gen_random_uuid(), nextval('onceward_outbox_number'), 0, 0, 0, 0, 4, 'topic', '', '', 'done', '', '{}', ''
		FROM generate_series(1, 20000)`)
	u.add("topic", "", "first", "second")
	claimed, err := u.store.ClaimMessages(t.Context(), []outbox.ClaimRequest{{Topic: "topic", Limit: 2}}, time.Hour)
	must(t, err)
	exec(t, u.admin, `UPDATE onceward_delivery SET due = due - 1000000 WHERE type = 'second'`)
	exec(t, u.admin, `VACUUM ANALYZE onceward_delivery`)
	endings := make([]outbox.Outcome, len(claimed))
	for i, c := range claimed {
		endings[len(claimed)-1-i] = outbox.Outcome{Lease: c.Lease(), State: outbox.StateDone}
	}
	u.lockBoth(func() error {
		fenced, err := u.store.FinishMessages(t.Context(), endings)
		if len(fenced) > 0 {
			t.Errorf("O2: %d leases that are held were said to be lost", len(fenced))
		}
		return err
	})
}

// lockBoth locks the first message and, when something waits for it, the second.
func (u *outboxTest) lockBoth(waits func() error) {
	u.Helper()
	conn, err := u.admin.Acquire(u.Context())
	must(u, err)
	defer conn.Release()
	lock := func(kind string) {
		_, err := conn.Exec(u.Context(), `SELECT FROM onceward_delivery WHERE type = $1 FOR UPDATE`, kind)
		must(u, err)
	}
	_, err = conn.Exec(u.Context(), `BEGIN`)
	must(u, err)
	lock("first")
	over := make(chan error, 1)
	go func() { over <- waits() }()
	awaitLockWait(u, u.url)
	lock("second")
	_, err = conn.Exec(u.Context(), `ROLLBACK`)
	must(u, err)
	must(u, <-over)
}

// TestSlowPromotion: where to promote all at once takes longer than a claim may, fewer are promoted until it does not.
func TestSlowPromotion(t *testing.T) {
	t.Parallel()
	u := newOutboxTest(t, "")
	exec(t, u.admin,
		`CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.01); RETURN NEW; END $$`)
	exec(t, u.admin, `CREATE TRIGGER dawdle BEFORE INSERT ON onceward_delivery FOR EACH ROW EXECUTE FUNCTION dawdle()`)
	exec(t, u.admin, `INSERT INTO onceward_outbox (id, number, lane, due, created_at, origin_attempt, topic, aggregatetype, aggregateid, type,
			downstream_key, attributes, payload)
		SELECT gen_random_uuid(), nextval('onceward_outbox_number'), 0, onceward_now(), onceward_now(), 0, 'topic', '', '', 't', '', '{}', ''
		FROM generate_series(1, 1000)`)
	await.That(t, "O2: few enough are promoted", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // all at once take ten
		defer cancel()
		claimed, _ := u.store.ClaimMessages(ctx, []outbox.ClaimRequest{{Topic: "topic", Limit: 10}}, time.Minute)
		return len(claimed) == 10
	})
}

// TestRefusedPromotion: what the server refuses in a transaction of the store's own costs no connection, however often
// it is tried again.
func TestRefusedPromotion(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	var connects atomic.Int64
	s := openConfigured(t, url, func(config *pgxpool.Config) {
		config.AfterConnect = func(context.Context, *pgx.Conn) error {
			connects.Add(1)
			return nil
		}
	})
	box, err := outbox.New(s, outbox.Config{})
	must(t, err)
	u := &outboxTest{t, url, s, box, openAdmin(t, url)}
	u.add("topic", "1", "first")
	exec(t, u.admin, `ALTER TABLE onceward_delivery ADD CONSTRAINT refusing CHECK (type <> 'first')`)
	const tries = 20 // more than the store has connections
	before := connects.Load()
	for range tries {
		if kinds, err := u.tryClaim("topic"); err == nil || !strings.Contains(err.Error(), "refusing") {
			t.Fatalf("O2: (%q, %v) was claimed, want what the server says", kinds, err)
		}
	}
	if made := connects.Load() - before; made > 1 {
		t.Errorf("%d claims that the server refused took %d new connections", tries, made)
	}
	exec(t, u.admin, `ALTER TABLE onceward_delivery DROP CONSTRAINT refusing`)
	u.wantClaimed(u.claim(), "first")
}

// TestUnreadPromotion: what was claimed while it was promoted, and could not be read, is read once more. Else it
// waits for the end of its lease, and fewer are promoted next.
func TestUnreadPromotion(t *testing.T) {
	t.Parallel()
	const most = 3
	reads := func(sql string) bool { return strings.Contains(sql, `token = $2 AND state = 1`) }
	cases := map[string]struct {
		fail     func(proxy *servers.Proxy, leave func())
		failures int
	}{
		"once": {func(proxy *servers.Proxy, _ func()) { proxy.CutReply(reads) }, 0},
		"twice": {func(proxy *servers.Proxy, _ func()) {
			proxy.CutRequest(reads)
			proxy.CutReply(reads)
		}, 1},
		"too late": {func(proxy *servers.Proxy, leave func()) {
			caught := proxy.Sprung()
			t.Cleanup(proxy.HoldReply(reads))
			go func() {
				if proxy.AwaitSprung(t.Context(), caught+1) == nil {
					leave()
				}
			}()
		}, 1},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, proxy := openProxied(t)
			box, err := outbox.New(s, outbox.Config{})
			must(t, err)
			u := &outboxTest{t, proxy.URL(), s, box, openAdmin(t, proxy.URL())}
			claim := func(ctx context.Context) ([]outbox.Claimed, error) {
				return s.ClaimMessages(ctx, []outbox.ClaimRequest{{Topic: "topic", Limit: most}}, time.Hour)
			}
			for range most { // so that each connection has prepared what it needs
				u.add("topic", "before", "before")
				_, err := claim(t.Context())
				must(t, err)
			}
			exec(t, u.admin, `UPDATE onceward_delivery SET state = 4`)
			u.add("topic", "1", "first", "second")
			u.add("topic", "2", "third")
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			c.fail(proxy, leave)
			claimed, err := claim(ctx)
			if (err != nil) != (c.failures > 0) || s.PromoteFailures() != c.failures {
				t.Errorf("the claim got %v, and %d failures are counted, want %d", err, s.PromoteFailures(), c.failures)
			}
			want := []string{"first of 1", "second of 0", "third of 1"}
			if err != nil {
				claimed, err = claim(t.Context())
				if err != nil || len(claimed) > 0 {
					t.Errorf("O2: %d messages were claimed before the end of their lease (%v)", len(claimed), err)
				}
				exec(t, u.admin, `UPDATE onceward_delivery SET due = 0 WHERE state = 1`)
				claimed, err = claim(t.Context())
				must(t, err)
				want = []string{"first of 2", "second of 0", "third of 2"}
			}
			var got []string
			for i := range claimed {
				got = append(got, fmt.Sprintf("%s of %d", claimed[i].Type, claimed[i].Attempts))
			}
			u.wantClaimed(got, want...)
		})
	}
}
