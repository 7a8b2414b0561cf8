package storetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/onceward/onceward/outbox"
)

// testOutboxUpkeep checks that old messages are purged, that open ones stay, and that workers are woken (O2, O3).
func testOutboxUpkeep(t *testing.T, h Harness) {
	h.test(t, "done ones purged by age", func(e *env) {
		e.purgesMessages(func(i int) {
			e.done(e.claimOne(e.add(about("x", fmt.Sprint("evt-", i)))[0], "O2"))
		})
	})
	h.test(t, "captured ones purged by age", func(e *env) {
		e.purgesMessages(func(i int) {
			m := about("x", fmt.Sprint("evt-", i))
			m.Topic = ""
			e.add(m)
		})
	})
	h.test(t, "age counts from when it was done", func(e *env) {
		id := e.add(about("", "old, done late"))[0]
		lapse(e)
		e.done(e.claimOne(id, "O2"))
		if e.Advance != nil {
			e.purge(e.brief()/2, 0, "O3: a message that was done just now")
		}
		lapse(e)
		e.purge(e.brief()/2, 1, "O3: a message that was done a while ago")
	})
	h.test(t, "open ones and dead letters are not purged", notPurged)
	h.test(t, "purged beside an aggregate that goes on", purgedBeside)
	h.test(t, "woken after a commit", wokenByCommit)
	h.test(t, "watchers that do not listen", deafWatchers)
}

// purge removes the messages that are older than age.
func (e *env) purge(age time.Duration, want int, rule string) {
	e.Helper()
	purged, err := e.box().PurgeMessages(e.ctx, age, everything)
	e.must(err)
	if purged != want {
		e.Errorf("%s: %d messages were purged, want %d", rule, purged, want)
	}
}

// purgesMessages adds five messages called evt-0 to evt-4, and purges them.
func (e *env) purgesMessages(add func(i int)) {
	e.Helper()
	e.purgedByAge(add, e.box().PurgeMessages, func() (left []string) {
		for _, m := range e.listMessages(outbox.Filter{}) {
			left = append(left, m.Type)
		}
		return left
	})
}

// notPurged purges all messages that may be purged, and checks that the others stay.
func notPurged(e *env) {
	ids := e.oneOfEach()
	if e.Advance != nil {
		e.Advance(100 * calm)
	}
	e.pass(e.resolution())
	e.purge(0, 2, "O3: one that is done and one that is captured")
	for state, id := range ids {
		left := len(e.listMessages(outbox.Filter{ID: id}))
		if gone := state == outbox.StateDone || state == outbox.StateCaptured; gone != (left == 0) {
			e.Errorf("O3: of a message that is %s %d are left by a purge", state, left)
		}
	}
}

// purgedBeside purges the head of an aggregate while the rest is open.
func purgedBeside(e *env) {
	ids := e.lane("x", 4)
	e.done(e.claimOne(ids[0], "O2"))
	head := e.claimOne(ids[1], "O2")
	e.wantIDs(e.claim(everything), "O2: those behind one that is leased")
	e.pass(e.resolution())
	e.purge(0, 1, "O3: the one that is done")
	e.wantIDs(e.claim(everything), "O2: those behind one that is leased, after a purge")
	e.done(head)
	e.pass(e.resolution())
	e.purge(0, 1, "O3: the one that is done")
	e.wantDelivery("O2: the rest of an aggregate whose first ones were purged", ids[2:]...)
}

// wokenByCommit waits for hints about messages of this process, added in both kinds of transaction.
func wokenByCommit(e *env) {
	for name, commit := range map[string]func(){
		"InTx": func() { e.add(about("x", "of InTx")) },
		"FinishMessageTx": func() {
			head := e.claim(1)
			if len(head) != 1 {
				e.Fatal("O2: there is nothing to claim")
			}
			var ids []string
			e.must(e.box().FinishMessageTx(e.ctx, to(outbox.StateDone, head[0]),
				e.adding(&ids, about("x", "of FinishMessageTx"))))
		},
	} {
		e.add(about("", "before"))
		_ = e.box().HearsMessages() // the result does not matter: these are hints of this process
		first, stopFirst := e.box().WatchMessages()
		second, stopSecond := e.box().WatchMessages()
		e.Cleanup(stopSecond)
		commit()
		for i, hints := range []<-chan struct{}{first, second} {
			select {
			case <-hints:
			case <-e.ctx.Done():
				e.Fatalf("O2: watcher %d got no hint of a message that was committed by %s", i+1, name)
			}
		}
		stopFirst()
		e.add(about("", "after one has stopped"))
	}
}

// deafWatchers checks that watchers that never read, and a watcher that has stopped, do not block others.
func deafWatchers(e *env) {
	for i := range 3 {
		_, stop := e.box().WatchMessages()
		if i == 0 {
			stop()
		} else {
			e.Cleanup(stop)
		}
	}
	gone, cancel := context.WithCancel(e.ctx)
	cancel()
	if _, err := e.box().ClaimMessages(gone, []outbox.ClaimRequest{{Topic: topic, Limit: 1}}, calm); err == nil {
		e.Error("O2: a claim for a caller who has left went through")
	}
	var want []string
	for i := range 20 {
		want = append(want, e.add(about("x", fmt.Sprint(i)))...)
	}
	e.wantDelivery("O2: beside watchers that do not look", want...)
}
