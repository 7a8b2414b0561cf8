package redis_test

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/redis"
)

// mostCommands is more than any call needs. A test that loses each of them in turn ends before.
const mostCommands = 10

// TestLostReplies loses the reply to each command of each call of an owner: the same call again succeeds, and leaves
// what one call leaves.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	for _, op := range operations {
		t.Run(op.name, func(t *testing.T) {
			t.Parallel()
			g := newGround(t)
			loseEach(t, g, op, func(n int) { g.proxy.CutReply(g.nth(n)) })
		})
	}
}

// TestLostRequests is the same with commands that do not reach the server.
func TestLostRequests(t *testing.T) {
	t.Parallel()
	for _, op := range operations {
		t.Run(op.name, func(t *testing.T) {
			t.Parallel()
			g := newGround(t)
			loseEach(t, g, op, func(n int) { g.proxy.CutRequest(g.nth(n)) })
		})
	}
}

// loseEach makes a call again and again, and loses its first command, then its second, and so on.
func loseEach(t *testing.T, g *ground, op operation, arm func(n int)) {
	t.Helper()
	for n := 1; ; n++ {
		key := fmt.Sprint(op.name, n)
		claim, sprung := op.prepare(t, g.around, key), g.proxy.Sprung()
		before := look(t, g.around, key)
		arm(n)
		err := op.call(t.Context(), g.through, claim)
		if g.proxy.Sprung() == sprung { // all commands were lost in turn
			must(t, err)
			g.proxy.Disarm()
			if n == 1 || n > mostCommands {
				t.Errorf("%d commands were lost", n-1)
			}
			return
		}
		if err != nil {
			wantUnavailable(t, err, "S9: "+op.name)
		}
		between := look(t, g.around, key)
		if !op.done(between) && !reflect.DeepEqual(before, between) {
			t.Errorf("%s left %+v, want its work or the record before it, %+v", op.name, between, before)
		}
		must(t, op.call(t.Context(), g.through, claim))
		after := look(t, g.around, key)
		if !op.done(after) || after.Attempt != claim.Attempt {
			t.Errorf("S6: %s again left %+v", op.name, after)
		}
		after.LeaseUntil = between.LeaseUntil // to extend it again makes it longer
		if op.done(between) && !reflect.DeepEqual(between, after) {
			t.Errorf("S6: %s again changed the record from %+v to %+v", op.name, between, after)
		}
	}
}

// TestLostReservation loses the reply to each command of a reservation, by which it is made, retried, or found: the same
// nonce gets the same grant, another one finds it in progress, and there is one record.
func TestLostReservation(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	origins := map[string]func(key string){
		"created": func(string) {},
		"retried": func(key string) { must(t, g.around.Release(t.Context(), booked(t, g.around, key), "nothing was done")) },
	}
	for origin, prepare := range origins {
		for n := 1; ; n++ {
			key, sprung := fmt.Sprint(origin, n), g.proxy.Sprung()
			prepare(key)
			r := booking(key)
			g.proxy.CutReply(g.nth(n))
			v, err := g.through.Reserve(t.Context(), r)
			if g.proxy.Sprung() == sprung {
				must(t, err)
				g.proxy.Disarm()
				if n == 1 || n > mostCommands {
					t.Errorf("%d commands were lost", n-1)
				}
				break
			}
			if err != nil {
				wantUnavailable(t, err, "S9: reserve")
				v, err = g.through.Reserve(t.Context(), r)
				must(t, err)
			}
			wantGrant(t, g, key, v)
		}
	}
}

// wantGrant: a reservation has the right to execute, and no other one gets it.
func wantGrant(t *testing.T, g *ground, key string, v store.Verdict) {
	t.Helper()
	rec := look(t, g.around, key)
	if v.Decision != store.DecisionExecute || v.Record.Attempt != rec.Attempt || rec.State != store.StateInProgress {
		t.Errorf("S9: %s got %s at attempt %d, and the record is %s at %d",
			key, v.Decision, v.Record.Attempt, rec.State, rec.Attempt)
	}
	other, err := g.through.Reserve(t.Context(), booking(key))
	must(t, err)
	if other.Decision != store.DecisionInProgress {
		t.Errorf("S1: another reservation of %s got %s", key, other.Decision)
	}
}

// refusals are errors with which a server that cannot work now answers.
var refusals = []string{
	"LOADING Redis is loading the dataset in memory",
	"READONLY You can't write against a read only replica.",
	"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
	"CLUSTERDOWN The cluster is down",
	"TRYAGAIN Multiple keys request during rehashing of slot",
	"OOM command not allowed when used memory > 'maxmemory'.",
	"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
	"NOREPLICAS Not enough good replicas to write.",
	"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
	"NOAUTH Authentication required.",
	"ERR something that no version knows",
}

// TestRefusals has the server refuse each command of each call: the call fails as one that the store could not do, or
// does its work in spite of it, and is done once the server agrees.
func TestRefusals(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	for i, refusal := range refusals {
		for _, op := range operations {
			for n := 1; n <= 2; n++ {
				key := fmt.Sprint(i, op.name, n)
				claim := op.prepare(t, g.around, key)
				before := look(t, g.around, key)
				g.proxy.Answer(g.nth(n), refusal, 1)
				if err := op.call(t.Context(), g.through, claim); err != nil {
					wantUnavailable(t, err, op.name+" met "+refusal)
					if got := look(t, g.around, key); !reflect.DeepEqual(before, got) {
						t.Errorf("%s failed with %v and left %+v", op.name, err, got)
					}
				}
				g.proxy.Disarm()
				must(t, op.call(t.Context(), g.through, claim))
				if got := look(t, g.around, key); !op.done(got) {
					t.Errorf("%s left %+v", op.name, got)
				}
			}
		}
		key := fmt.Sprint(i, "reserve")
		r := booking(key)
		g.proxy.Answer(g.nth(1), refusal, 1)
		v, err := g.through.Reserve(t.Context(), r)
		g.proxy.Disarm()
		if err != nil {
			wantUnavailable(t, err, "reserve met "+refusal)
			if got := look(t, g.around, key); got.State != store.StateNone {
				t.Errorf("S9: a refused reservation left %+v", got)
			}
			v, err = g.through.Reserve(t.Context(), r)
			must(t, err)
		}
		wantGrant(t, g, key, v)
	}
}

// TestForgottenScripts has the server forget the scripts before each call, as one that was restarted does.
func TestForgottenScripts(t *testing.T) {
	t.Parallel()
	server := servers.NewRedis(t)
	s := open(t, server.URL())
	for _, op := range operations {
		claim := op.prepare(t, s, op.name)
		_, err := server.Do(t.Context(), "SCRIPT", "FLUSH")
		must(t, err)
		must(t, op.call(t.Context(), s, claim))
		if got := look(t, s, op.name); !op.done(got) {
			t.Errorf("%s left %+v", op.name, got)
		}
	}
}

// TestConnectionsAreCut resets all connections between calls: each call that meets a dead one ends, and the next one, or
// the same one again, is served.
func TestConnectionsAreCut(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	for i := range 20 {
		key := fmt.Sprint("cut", i)
		g.proxy.DropAll()
		r := booking(key)
		var v store.Verdict
		await.Success(t, "the reservation is answered", func() (err error) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if v, err = g.through.Reserve(ctx, r); err != nil {
				wantUnavailable(t, err, "a cut connection")
			}
			return err
		})
		wantGrant(t, g, key, v)
	}
}

// TestRefusedConnections: while no connection can be made, calls fail before their context ends, or with it; afterwards
// they are served.
func TestRefusedConnections(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	g.proxy.Refuse(true)
	g.proxy.DropAll()
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		_, err := g.through.Reserve(ctx, booking("refused"))
		cancel()
		wantUnavailable(t, err, "no connection")
	}
	if got := look(t, g.around, "refused"); got.State != store.StateNone {
		t.Errorf("S9: %+v", got)
	}
	g.proxy.Refuse(false)
	await.Success(t, "the store is back", func() error {
		_, err := g.through.Reserve(t.Context(), booking("refused"))
		return err
	})
}

// TestSilentConnection: a connection on which replies stop, as after a fire wall has forgotten it, is given up and
// replaced while it is still silent, and the calls that met it end with their contexts.
func TestSilentConnection(t *testing.T) {
	t.Parallel()
	primary, _ := replicated(t)
	for name, options := range ways(time.Second) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := servers.NewRedisProxy(t, primary.URL())
			options := append(options, redis.WithPrefix(name), usual)
			s, around := open(t, proxy.URL(), options...), open(t, primary.URL(), options...)
			await.Success(t, "the replica follows", func() error {
				_, err := s.Reserve(t.Context(), booking("first"))
				return err
			})
			defer proxy.HoldReply(func(command string) bool { return strings.Contains(command, "silent") })()
			r := booking("silent")
			await.Success(t, "the store has another connection", func() error {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				var err error
				await.Return(t, "a call on a silent connection", func() { _, err = s.Reserve(ctx, r) })
				if err != nil {
					wantUnavailable(t, err, "a silent connection")
				}
				return err
			})
			v, err := around.Reserve(t.Context(), r)
			must(t, err)
			if v.Decision != store.DecisionExecute || v.Origin != store.OriginRepeated {
				t.Errorf("S9: the same reservation got (%s, %s)", v.Decision, v.Origin)
			}
		})
	}
}

// TestStaleDecision: what was read too long ago is decided again, because the times that are stored count from then.
func TestStaleDecision(t *testing.T) {
	t.Parallel()
	g := newGround(t, usual)
	now := func() time.Time {
		clock := booking("clock")
		clock.NoCreate = true
		v, err := g.around.Reserve(t.Context(), clock)
		must(t, err)
		return v.Now
	}
	claim := booked(t, g.around, "stale")
	before := g.proxy.Sprung()
	release := g.proxy.HoldReply(g.nth(1)) // the look, which the decision rests on
	defer release()
	abandoned := make(chan error, 1)
	go func() { abandoned <- g.through.Abandon(t.Context(), claim, "not known") }()
	must(t, g.proxy.AwaitSprung(t.Context(), before+1))
	read := now()
	await.That(t, "the reading is too old", func() bool { return now().Sub(read) > 1200*time.Millisecond })
	fresh := now()
	release()
	if await.Value(t, "the reply to the call", abandoned) != nil { // the connection was silent for too long
		must(t, g.through.Abandon(t.Context(), claim, "not known"))
	}
	if rec := look(t, g.around, "stale"); rec.State != store.StateUnknown || rec.SettledAt.Before(fresh) {
		t.Errorf("S3: the record is %s since %s, want unknown since %s or later", rec.State, rec.SettledAt, fresh)
	}
}
