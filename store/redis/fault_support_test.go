package redis_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/redis"
)

// booking asks for a key with a nonce of its own. The payload is the same each time.
func booking(key string) *store.Reservation {
	r := &store.Reservation{
		ID: store.ID{Scope: "alice", Key: key}, Operation: "POST /payments",
		Fingerprints: []store.Fingerprint{{Secret: 1, Rules: 1, Sum: [32]byte{1}}},
		Lease:        time.Hour, Retention: time.Hour,
	}
	_, _ = rand.Read(r.Nonce[:])
	return r
}

// booked makes a reservation that is granted.
func booked(t testing.TB, s store.Store, key string) store.Claim {
	t.Helper()
	v, err := s.Reserve(t.Context(), booking(key))
	must(t, err)
	if v.Decision != store.DecisionExecute {
		t.Fatalf("the reservation of %q got %s", key, v.Decision)
	}
	return store.Claim{ID: v.Record.ID, Attempt: v.Record.Attempt}
}

// lapsed makes records whose leases are over by the clock of the server.
func lapsed(t testing.TB, s store.Store, n int, key string) []store.Claim {
	t.Helper()
	claims, until := make([]store.Claim, n), time.Time{}
	for i := range claims {
		r := booking(fmt.Sprint(key, i))
		r.Lease = time.Millisecond
		v, err := s.Reserve(t.Context(), r)
		must(t, err)
		claims[i], until = store.Claim{ID: v.Record.ID, Attempt: v.Record.Attempt}, v.Record.LeaseUntil
	}
	await.That(t, "the leases are over", func() bool {
		look := booking("clock")
		look.NoCreate = true
		v, err := s.Reserve(t.Context(), look)
		must(t, err)
		return v.Now.After(until)
	})
	return claims
}

// paid is an answer.
func paid(text string) *store.Completion {
	return &store.Completion{Response: store.Response{Status: http.StatusCreated, Body: []byte(text)}}
}

// look reads a record past every proxy; there may be none.
func look(t testing.TB, s store.Store, key string) store.Record {
	t.Helper()
	rec, err := s.Get(t.Context(), store.ID{Scope: "alice", Key: key})
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		t.Fatal(err)
	}
	return rec
}

// wantUnavailable checks that a call failed because of the server, with an error that shows it.
func wantUnavailable(t testing.TB, err error, what string) {
	t.Helper()
	if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrFenced) {
		t.Errorf("%s: %v, want ErrUnavailable", what, err)
	}
}

// operation is one of the calls of an owner.
type operation struct {
	name string
	// prepare makes what the call needs.
	prepare func(t testing.TB, s store.Store, key string) store.Claim
	// call makes the call, the same each time for one claim.
	call func(ctx context.Context, s store.Store, c store.Claim) error
	// done reports whether the record is as the call leaves it.
	done func(rec store.Record) bool
}

// stands reports whether a record is in a state.
func stands(state store.State) func(store.Record) bool {
	return func(rec store.Record) bool { return rec.State == state }
}

// operations are the calls of an owner. A reservation is tested separately.
var operations = []operation{
	{"extend", booked, func(ctx context.Context, s store.Store, c store.Claim) error {
		return s.Extend(ctx, c, 2*time.Hour)
	}, func(rec store.Record) bool { return rec.LeaseUntil.Sub(rec.CreatedAt) >= 2*time.Hour }},
	{"checkpoint", booked, func(ctx context.Context, s store.Store, c store.Claim) error {
		return s.Checkpoint(ctx, c, store.Checkpoint{Point: "charged", Data: []byte("data"), ProviderID: "ch_1"})
	}, func(rec store.Record) bool {
		return rec.Point == "charged" && string(rec.Data) == "data" && rec.ProviderID == "ch_1"
	}},
	{"complete", booked, func(ctx context.Context, s store.Store, c store.Claim) error {
		_, err := s.Complete(ctx, c, paid("done"))
		return err
	}, stands(store.StateCompleted)},
	{"release", booked, func(ctx context.Context, s store.Store, c store.Claim) error {
		return s.Release(ctx, c, "nothing was done")
	}, stands(store.StateRetryable)},
	{"abandon", booked, func(ctx context.Context, s store.Store, c store.Claim) error {
		return s.Abandon(ctx, c, "not known")
	}, stands(store.StateUnknown)},
	{"reject", booked, func(ctx context.Context, s store.Store, c store.Claim) error {
		return s.Reject(ctx, c)
	}, stands(store.StateExpired)},
}

// ground is a store through a proxy, and one past it on the same records.
type ground struct {
	proxy           *servers.RedisProxy
	through, around *redis.Store
	prefix          string
}

func newGround(t *testing.T, options ...redis.Option) *ground {
	t.Helper()
	server := servers.Redis(t)
	g := &ground{proxy: servers.NewRedisProxy(t, server.URL()), prefix: server.Prefix(t)}
	g.through = open(t, g.proxy.URL(), append(options, redis.WithPrefix(g.prefix))...)
	g.around = open(t, server.URL(), redis.WithPrefix(g.prefix))
	for _, op := range operations { // the server knows the scripts from now on
		must(t, op.call(t.Context(), g.through, op.prepare(t, g.through, "warm-up "+op.name)))
	}
	return g
}

// ofStore finds the commands by which the store works on records.
func (g *ground) ofStore(command string) bool { return strings.Contains(command, g.prefix) }

// nth finds the command of the store with this number, counted from now on, from 1.
func (g *ground) nth(n int) func(command string) bool {
	return func(command string) bool {
		if g.ofStore(command) {
			n--
		}
		return n == 0 && g.ofStore(command)
	}
}
