package callers_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/client"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/outbox/httpcall"
	"github.com/onceward/onceward/store/memory"
	"github.com/onceward/onceward/store/postgres"
)

// TestCallFinishes: an operation is sent until it is answered, with credentials that are not kept, and its
// answer is reported in the transaction that ends it.
func TestCallFinishes(t *testing.T) {
	t.Parallel()
	onStores(t, func(c *caller) {
		s := newService(c.T, fails, fails)
		sent := request(c, "", s.URL, "it \x00\xff")
		sent.Header["X-Many"] = []string{"one", "zw\xf6lf", ""}
		id := c.enqueue(sent)[0]
		w := c.worker(httpcall.Config{
			OnSettled: c.writes,
			Prepare: func(r *http.Request) error {
				r.Header.Set("Authorization", "Bearer secret")
				return nil
			},
		})
		c.finish(w)
		o := c.wants(id, outbox.StateDone, http.StatusCreated)
		if string(o.Answer.Body) != "made of it \x00\xff" || o.Answer.Header.Get("Location") != "/1" ||
			o.Answer.Header.Get("Set-Cookie") != "" || o.Answer.Truncated || o.Attempts != 3 || o.FirstSent.IsZero() {
			c.Errorf("the answer is %+v", o)
		}
		if many := o.Header["X-Many"]; len(many) != 3 || many[1] != "zw\xf6lf" || o.Method != http.MethodPost || o.URL != s.URL {
			c.Errorf("the request became %+v", o)
		}
		s.wantOneKey(c, 3)
		if got := s.sent("Authorization"); got[2] != "Bearer secret" || o.Header.Get("Authorization") != "" {
			c.Errorf("credentials: %q were sent, and %q are kept", got, o.Header)
		}
		if got := s.sent("Idempotency-Key"); got[0] != `"`+o.Key+`"` {
			c.Errorf("the key is %s, and %s was sent", o.Key, got[0])
		}
		c.wantReported(id + " answered")
	})
}

// TestEnqueueInPgx: a transaction of pgx, and the answer of a transactional handler, take an operation along too.
func TestEnqueueInPgx(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), servers.Postgres(t).SchemaURL(t))
	must(t, err)
	t.Cleanup(pool.Close)
	db, err := postgres.New(t.Context(), pool)
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	box, err := outbox.New(db, outbox.Config{})
	must(t, err)
	ours, err := httpcall.New(httpcall.Config{Outbox: box, Topic: topic})
	must(t, err)
	m, err := ours.Message(request(t, "a", "https://pay.example/payments", "{}"))
	must(t, err)
	var id string
	must(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		id, err = postgres.AddMessage(t.Context(), box, tx, m)
		return err
	}))
	found, err := db.Messages(t.Context(), outbox.Filter{DownstreamKey: "a"})
	must(t, err)
	if len(found) != 1 || found[0].ID != id || found[0].Type != "POST pay.example" {
		t.Errorf("enqueued is %+v", found)
	}
}

// broken is a store that fails.
type broken struct {
	outbox.Store
	// effects and ends are called first, and may refuse.
	effects, ends, extends func() error
}

func refuse(by func() error) error {
	if by == nil {
		return nil
	}
	return by()
}

// RecordEffect implements [outbox.Store].
func (b *broken) RecordEffect(ctx context.Context, l outbox.Lease, id string, answer []byte) error {
	if err := refuse(b.effects); err != nil {
		return err
	}
	return b.Store.RecordEffect(ctx, l, id, answer)
}

// FinishMessageTx implements [outbox.Store].
func (b *broken) FinishMessageTx(ctx context.Context, end outbox.Outcome, work func(ctx context.Context) error) error {
	if err := refuse(b.ends); err != nil {
		return err
	}
	return b.Store.FinishMessageTx(ctx, end, work)
}

// ExtendMessages implements [outbox.Store].
func (b *broken) ExtendMessages(ctx context.Context, l []outbox.Lease, d time.Duration) ([]outbox.Lease, error) {
	if err := refuse(b.extends); err != nil {
		return nil, err
	}
	return b.Store.ExtendMessages(ctx, l, d)
}

var errDisk = errors.New("the disk is full")

// TestNothingIsSentThatIsNotKept: without the time of the first sending on the disk no byte is sent.
func TestNothingIsSentThatIsNotKept(t *testing.T) {
	inTime(t, func(c *caller) {
		s, way := inProcess(c.T)
		id := c.enqueue(request(c, "", s.URL, ""))[0]
		full := &broken{Store: c.store, effects: func() error { return errDisk }}
		c.run(c.worker(httpcall.Config{Transport: way}, full), outbox.Report{Retried: 1})
		if sent := s.sent("Idempotency-Key"); len(sent) != 0 {
			c.Errorf("I18: it was sent %d times", len(sent))
		}
		c.wants(id, outbox.StateReady, 0)
	})
}

// TestAnswerThatCannotBeKept: the caller dies, in effect, between the answer and its being kept. The next worker sends
// the operation again, under the same key.
func TestAnswerThatCannotBeKept(t *testing.T) {
	inTime(t, func(c *caller) {
		s, way := inProcess(c.T)
		id := c.enqueue(request(c, "", s.URL, ""))[0]
		kept := 0
		full := &broken{Store: c.store, effects: func() error {
			if kept++; kept > 1 {
				return errDisk
			}
			return nil
		}}
		c.run(c.worker(httpcall.Config{Transport: way, OnSettled: c.writes}, full), outbox.Report{Retried: 1})
		c.wants(id, outbox.StateReady, 0)
		c.wantReported()
		c.advance(pause)
		c.run(c.worker(httpcall.Config{Transport: way, OnSettled: c.writes}), outbox.Report{Delivered: 1})
		c.wants(id, outbox.StateDone, http.StatusCreated)
		c.wantReported(id + " answered")
		s.wantOneKey(c, 2)
	})
}

// TestStoreComesBack: a store that fails for a while is asked again, and the operation is not sent again.
func TestStoreComesBack(t *testing.T) {
	inTime(t, func(c *caller) {
		s, way := inProcess(c.T)
		id := c.enqueue(request(c, "", s.URL, ""))[0]
		failures := 0
		flaky := &broken{Store: c.store, effects: func() error {
			if failures++; failures%3 != 0 {
				return errDisk
			}
			return nil
		}}
		c.run(c.worker(httpcall.Config{Transport: way}, flaky), outbox.Report{Delivered: 1})
		c.wants(id, outbox.StateDone, http.StatusCreated)
		s.wantOneKey(c, 1)
	})
}

// TestPausedCallerIsFenced: a delivery sleeps between the answer and its being kept, for longer than its lease. What it
// keeps then is refused, and the answer of the next delivery alone is reported.
func TestPausedCallerIsFenced(t *testing.T) {
	inTime(t, func(c *caller) {
		s, way := inProcess(c.T, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "of the first") })
		id := c.enqueue(request(c, "", s.URL, ""))[0]
		var kept atomic.Int64
		sleepy := &broken{
			Store: c.store, extends: func() error { return errDisk },
			effects: func() error {
				if kept.Add(1) == 2 {
					time.Sleep(time.Minute)
				}
				return nil
			},
		}
		w := c.worker(httpcall.Config{Transport: way, OnSettled: c.writes}, sleepy)
		c.run(w, outbox.Report{Lost: 1, Delivered: 1}) // it takes the message again when the lease is over
		c.wants(id, outbox.StateDone, http.StatusCreated)
		c.wantReported(id + " answered")
		s.wantOneKey(c, 2)
	})
}

// TestReportedAtLeastOnce: what could not be reported, or was not because the worker died, is reported again, and not sent
// again.
func TestReportedAtLeastOnce(t *testing.T) {
	inTime(t, func(c *caller) {
		s, way := inProcess(c.T)
		id := c.enqueue(request(c, "", s.URL, "it"))[0]
		var calls atomic.Int64
		config := httpcall.Config{Transport: way, OnSettled: func(ctx context.Context, o httpcall.Operation) error {
			if o.ID != id || string(o.Answer.Body) != "made of it" || o.Outcome != client.OutcomeAnswered {
				c.Errorf("reported is %+v", o)
			}
			err := c.writes(ctx, o)
			switch calls.Add(1) {
			case 1:
				return outbox.Permanent(errors.New("not now")) // OnSettled gives nothing up
			case 2:
				panic("no")
			}
			return err
		}}
		dying := &broken{Store: c.store, ends: func() error { return errDisk }}
		c.run(c.worker(config, dying), outbox.Report{Retried: 1})
		c.wants(id, outbox.StateReady, http.StatusCreated)
		c.finish(c.worker(config))
		c.wants(id, outbox.StateDone, http.StatusCreated)
		if calls.Load() != 3 {
			c.Errorf("OnSettled was called %d times", calls.Load())
		}
		c.wantReported(id + " answered")
		s.wantOneKey(c, 1)
	})
}

// TestWindowIsOver: nothing is sent that the service may have forgotten, not even when an operator replays it. The
// outcome is reported, and a person gives the answer.
func TestWindowIsOver(t *testing.T) {
	t.Parallel()
	onStores(t, func(c *caller) {
		s := newService(c.T, fails)
		id := c.enqueue(request(c, "", s.URL, ""))[0]
		w := c.worker(httpcall.Config{OnSettled: c.writes})
		c.run(w, outbox.Report{Retried: 1})
		c.wantReported()
		c.advance(time.Hour) // all workers were down for so long
		c.run(w, outbox.Report{DeadLetters: 1})
		if o := c.wants(id, outbox.StateDead, 0); !strings.Contains(o.LastError, "503") ||
			!strings.Contains(o.LastError, "a person has to find out") {
			c.Errorf("the last error is %q", o.LastError)
		}
		c.wantReported(id + " unknown")
		operator, err := outbox.NewOperator(c.store)
		must(c, err)
		must(c, operator.Replay(c.Context(), "ann", "once more", id))
		c.run(w, outbox.Report{DeadLetters: 1})
		c.wantReported(id+" unknown", id+" unknown")
		must(c, httpcall.Resolve(c.Context(), operator, "ann", "asked the bank", id,
			httpcall.Answer{Status: http.StatusOK, Body: []byte("found")}))
		c.run(w, outbox.Report{Delivered: 1})
		if o := c.wants(id, outbox.StateDone, http.StatusOK); string(o.Answer.Body) != "found" {
			c.Errorf("the answer is %q", o.Answer.Body)
		}
		c.wantReported(id+" answered", id+" unknown", id+" unknown")
		s.wantOneKey(c, 1)
	})
}

// TestWindowOfTheService is remembered: an answer that was cut off said for how long the key is kept, which is
// less long than its profile promises.
func TestWindowOfTheService(t *testing.T) {
	t.Parallel()
	onStores(t, func(c *caller) {
		s := newService(c.T, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Idempotency-Key-Expires", time.Now().Add(10*time.Minute).UTC().Format(http.TimeFormat))
			w.Header().Set("Content-Length", "5")
			w.WriteHeader(http.StatusCreated)
		})
		id := c.enqueue(request(c, "", s.URL, ""))[0]
		w := c.worker(httpcall.Config{OnSettled: c.writes})
		c.run(w, outbox.Report{Retried: 1})
		o := c.wants(id, outbox.StateReady, 0)
		if kept := o.KeptUntil.Sub(o.FirstSent); kept < 8*time.Minute || kept > 10*time.Minute {
			c.Errorf("it is kept for %v", kept)
		}
		c.advance(10 * time.Minute)
		c.run(w, outbox.Report{DeadLetters: 1})
		c.wants(id, outbox.StateDead, 0)
		c.wantReported(id + " unknown")
		s.wantOneKey(c, 1)
	})
}

// TestClockOfANode: a node whose clock is wrong neither closes a window nor keeps one open.
func TestClockOfANode(t *testing.T) {
	inTime(t, func(c *caller) {
		c.advance(-48 * time.Hour) // the store's clock is right, and so this node's is two days ahead
		s, way := inProcess(c.T, fails)
		id := c.enqueue(request(c, "", s.URL, ""))[0]
		w := c.worker(httpcall.Config{Transport: way})
		for range 2 { // it fails before a byte is sent, or is answered 503
			_, err := w.RunOnce(c.Context())
			must(c, err)
			c.wants(id, outbox.StateReady, 0)
			c.advance(pause)
		}
		c.run(w, outbox.Report{Delivered: 1})
		c.wants(id, outbox.StateDone, http.StatusCreated)
	})
}

// TestRedirect: a redirect, such as that to a page for logging in, is no answer. The operation is sent again where it
// was sent to, and nowhere else, until the window is over.
func TestRedirect(t *testing.T) {
	t.Parallel()
	onStores(t, func(c *caller) {
		elsewhere := newService(c.T)
		redirects := func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL+"/login", http.StatusFound)
		}
		once, always := newService(c.T, redirects), newService(c.T, redirects, redirects, redirects)
		ids := c.enqueue(request(c, "", once.URL, ""), request(c, "", always.URL, ""))
		w := c.worker(httpcall.Config{OnSettled: c.writes})
		c.run(w, outbox.Report{Retried: 2})
		c.advance(time.Minute)
		c.run(w, outbox.Report{Delivered: 1, Retried: 1})
		c.wants(ids[0], outbox.StateDone, http.StatusCreated)
		c.advance(time.Hour)
		c.run(w, outbox.Report{DeadLetters: 1})
		if o := c.wants(ids[1], outbox.StateDead, 0); !strings.Contains(o.LastError, "302") {
			c.Errorf("the last error is %q", o.LastError)
		}
		if sent := elsewhere.sent("Idempotency-Key"); len(sent) != 0 {
			c.Errorf("the page was asked for %d times", len(sent))
		}
		c.wantReported(ids[0]+" answered", ids[1]+" unknown")
		once.wantOneKey(c, 2)
		always.wantOneKey(c, 2)
	})
}

// TestChangedBody: two operations of one key are one at the service. The second gets the answer of the service,
// which is reported: a repetition gets the same answer, and another body is refused.
func TestChangedBody(t *testing.T) {
	t.Parallel()
	onStores(t, func(c *caller) {
		guard, err := onceward.New(memory.New(), onceward.Config{
			Scope:  func(*http.Request) (string, error) { return "alice", nil },
			Secret: []byte("the secret of the tests, long enough"), Logger: quiet,
		})
		must(c, err)
		var made atomic.Int64
		s := newService(c.T)
		s.Config.Handler = guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			made.Add(1)
			w.WriteHeader(http.StatusCreated)
		}), onceward.Reserved(onceward.FailureUnknown), onceward.OperationName("pay"))
		w := c.worker(httpcall.Config{OnSettled: c.writes})
		first := c.enqueue(request(c, "order-17", s.URL, `{"amount":100}`))[0]
		c.run(w, outbox.Report{Delivered: 1})
		again := c.enqueue(request(c, "order-17", s.URL, `{"amount":100}`), request(c, "order-17", s.URL, `{"amount":200}`))
		c.run(w, outbox.Report{Delivered: 2})
		c.wants(first, outbox.StateDone, http.StatusCreated)
		if o := c.wants(again[0], outbox.StateDone, http.StatusCreated); o.Answer.Header.Get("Idempotent-Replayed") != "true" {
			c.Errorf("the repetition is answered %+v", o.Answer)
		}
		if o := c.wants(again[1], outbox.StateDone, http.StatusUnprocessableEntity); !bytes.Contains(o.Answer.Body, []byte("mismatch")) {
			c.Errorf("another body is answered %s", o.Answer.Body)
		}
		if len(c.reported()) != 3 || made.Load() != 1 {
			c.Errorf("%d payments were made, and the reports are %q", made.Load(), c.reported())
		}
	})
}

// TestRefusal: what is refused at once is answered. After a sending that may have been executed, a refusal that the
// service does not keep says nothing about that one.
func TestRefusal(t *testing.T) {
	t.Parallel()
	c := openCaller(t, openSQLite)
	refuses := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnprocessableEntity) }
	cutOff := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	atOnce, later := newService(t, refuses), newService(t, cutOff, refuses)
	ids := c.enqueue(request(t, "", atOnce.URL, ""), request(t, "", later.URL, ""))
	c.finish(c.worker(httpcall.Config{}))
	c.wants(ids[0], outbox.StateDone, http.StatusUnprocessableEntity)
	c.wants(ids[1], outbox.StateDone, http.StatusCreated)
	atOnce.wantOneKey(t, 1)
	later.wantOneKey(t, 3)
}

// TestHostIsKept: a server that is reached by its address is asked by its name.
func TestHostIsKept(t *testing.T) {
	t.Parallel()
	c := openCaller(t, openSQLite)
	hosts := make(chan string, 1)
	s := newService(t, func(_ http.ResponseWriter, r *http.Request) { hosts <- r.Host })
	r := request(t, "", s.URL, "")
	r.Host = "pay.example"
	id := c.enqueue(r)[0]
	c.run(c.worker(httpcall.Config{}), outbox.Report{Delivered: 1})
	if host := <-hosts; host != "pay.example" {
		t.Errorf("%s was asked for", host)
	}
	c.wants(id, outbox.StateDone, http.StatusOK)
}

// TestLongAnswer: what was done is not forgotten because its answer is long.
func TestLongAnswer(t *testing.T) {
	t.Parallel()
	c := openCaller(t, openSQLite)
	s := newService(t,
		func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, strings.Repeat("x", outbox.MaxAnswer+1))
		},
		func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Long", strings.Repeat("x", 100<<10))
			_, _ = io.WriteString(w, strings.Repeat("x", outbox.MaxAnswer-50<<10))
		})
	for range 2 {
		id := c.enqueue(request(t, "", s.URL, ""))[0]
		c.run(c.worker(httpcall.Config{}), outbox.Report{Delivered: 1})
		o := c.wants(id, outbox.StateDone, http.StatusOK)
		if kept := len(o.Answer.Body); !o.Answer.Truncated || kept < outbox.MaxAnswer-50<<10 || kept > outbox.MaxAnswer {
			t.Errorf("kept are %d bytes, truncated %t", kept, o.Answer.Truncated)
		}
	}
}

// TestNoAnswerInTheLog: what a service says may be personal, and is for the outbox alone.
func TestNoAnswerInTheLog(t *testing.T) {
	inTime(t, func(c *caller) {
		says := func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "Alice Smith", http.StatusBadGateway) }
		s, way := inProcess(c.T, says, says)
		id := c.enqueue(request(c, "", s.URL, ""))[0]
		var log bytes.Buffer
		made, err := httpcall.New(httpcall.Config{Outbox: c.box, Topic: topic, Transport: way})
		must(c, err)
		w, err := outbox.NewWorker(c.store, outbox.WorkerConfig{
			Routes: map[string]outbox.Route{topic: made.Route()}, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		must(c, err)
		c.run(w, outbox.Report{Retried: 1})
		c.advance(time.Hour)
		c.run(w, outbox.Report{DeadLetters: 1})
		o := c.wants(id, outbox.StateDead, 0)
		if log.Len() == 0 || strings.Contains(log.String()+o.LastError, "Alice") {
			c.Errorf("%s was logged", log.String())
		}
	})
}

// TestPrepareThatFails is tried again: nothing was sent.
func TestPrepareThatFails(t *testing.T) {
	inTime(t, func(c *caller) {
		s, way := inProcess(c.T)
		id := c.enqueue(request(c, "", s.URL, ""))[0]
		times := 0
		c.finish(c.worker(httpcall.Config{Transport: way, Prepare: func(*http.Request) error {
			switch times++; times {
			case 1:
				return outbox.Permanent(errors.New("no token")) // Prepare gives nothing up
			case 2:
				panic("no")
			}
			return nil
		}}))
		c.wants(id, outbox.StateDone, http.StatusCreated)
		s.wantOneKey(c, 1)
	})
}

// TestPrepareThatFailsSendsNothing: the operation does not count as sent, so that its window has not begun.
func TestPrepareThatFailsSendsNothing(t *testing.T) {
	inTime(t, func(c *caller) {
		s, way := inProcess(c.T)
		id := c.enqueue(request(c, "", s.URL, ""))[0]
		fails := true
		w := c.worker(httpcall.Config{Transport: way, OnSettled: c.writes, Prepare: func(*http.Request) error {
			if fails {
				return errors.New("no token")
			}
			return nil
		}})
		c.run(w, outbox.Report{Retried: 1})
		if o := c.wants(id, outbox.StateReady, 0); !o.FirstSent.IsZero() {
			c.Errorf("it counts as sent at %v", o.FirstSent)
		}
		fails = false
		c.advance(2 * time.Hour) // longer than the window
		c.run(w, outbox.Report{Delivered: 1})
		c.wants(id, outbox.StateDone, http.StatusCreated)
		s.wantOneKey(c, 1)
	})
}

// TestMovedService: a service that has moved permanently does not do the work there. That is reported at once, with the
// new host. A service that has moved for a while may answer later.
func TestMovedService(t *testing.T) {
	t.Run("for a while", func(t *testing.T) {
		inTime(t, func(c *caller) {
			s, way := inProcess(c.T, func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, "https://new.pay.test/p", http.StatusTemporaryRedirect)
			})
			c.enqueue(request(c, "", s.URL, ""))
			c.run(c.worker(httpcall.Config{Transport: way, OnSettled: c.writes}), outbox.Report{Retried: 1})
		})
	})
	for _, status := range []int{http.StatusPermanentRedirect} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			inTime(t, func(c *caller) {
				moved := func(w http.ResponseWriter, r *http.Request) {
					http.Redirect(w, r, "https://new.pay.test/p?token=secret", status)
				}
				s, way := inProcess(c.T, moved, fails, moved)
				ids := c.enqueue(request(c, "", s.URL, ""))
				w := c.worker(httpcall.Config{Transport: way, OnSettled: c.writes})
				c.run(w, outbox.Report{DeadLetters: 1})
				o := c.wants(ids[0], outbox.StateDead, 0)
				if !strings.Contains(o.LastError, "new.pay.test") || strings.Contains(o.LastError, "secret") {
					c.Errorf("the last error is %q", o.LastError)
				}
				c.wantReported(ids[0] + " unknown")
				late := c.enqueue(request(c, "", s.URL, ""))[0] // an attempt before the redirect may have been executed
				c.run(w, outbox.Report{Retried: 1})
				c.advance(pause)
				c.run(w, outbox.Report{DeadLetters: 1})
				for _, name := range c.reported() {
					if strings.HasPrefix(name, late) && name != late+" unknown" {
						c.Errorf("reported is %q", name)
					}
				}
			})
		})
	}
}
