package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/proc/proctest"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/storeurl"
)

// Operators' commands are tested as a person runs them: as a process, on the store of a service that has left something
// of everything in it.

// serviceSecret is the service's.
const serviceSecret = "the secret of the service"

// service is what has filled a store.
type service struct {
	store storeurl.Closer
	url   string
	guard *onceward.Guard
	// unknown is an operation whose outcome is unknown, dead one that waits for a person, phased one whose step is in
	// doubt, paid one that was completed, lost one whose process died, and hostile one of a tenant who means ill.
	unknown, dead, phased, paid, lost, hostile store.ID
	// letter is the message that is a dead letter, if the store keeps messages.
	letter string
}

// stores are the kinds of store that commands run on, each a new one.
var stores = map[string]func(t *testing.T) string{
	"SQLite":     func(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "store.db") },
	"PostgreSQL": func(t *testing.T) string { return servers.Postgres(t).SchemaURL(t) },
	"Redis":      func(t *testing.T) string { return servers.Redis(t).URL() + "?prefix=" + rand.Text() },
	"MySQL":      func(t *testing.T) string { return servers.MariaDB(t).DatabaseURL(t) },
	"DynamoDB":   dynamoDBURL,
}

// onEach runs a test on each kind of store, or on some of them, filled by a service.
func onEach(t *testing.T, test func(t *testing.T, s *service), some ...string) {
	t.Helper()
	t.Parallel()
	if len(some) == 0 {
		some = slices.Collect(maps.Keys(stores))
	}
	for _, name := range some {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newService(t, stores[name](t)))
		})
	}
}

// onSQLite is for what commands refuse by themselves, before the kind of store could matter.
func onSQLite(t *testing.T, test func(t *testing.T, s *service)) {
	t.Helper()
	t.Parallel()
	test(t, newService(t, stores["SQLite"](t)))
}

// TestLooking: what only looks is tested on one and the same store, in any order.
func TestLooking(t *testing.T) {
	onEach(t, func(t *testing.T, s *service) {
		for name, look := range map[string]func(*testing.T, *service){
			"keys list": lookKeysList, "pages": lookPages, "keys show": lookKeysShow, "keys show phased": lookKeysShowPhased,
			"keys show JSON": lookKeysShowJSON, "unknown list": lookUnknownList, "stats": lookStats, "top": lookTop,
			"health": lookHealth,
		} {
			t.Run(name, func(t *testing.T) { look(t, s) })
		}
	}, servers.UnlessAllStores("SQLite", "PostgreSQL")...)
}

// TestActing: what changes something is tested on one and the same store, one after the other.
func TestActing(t *testing.T) {
	onEach(t, func(t *testing.T, s *service) {
		for _, try := range []struct {
			name string
			test func(*testing.T, *service)
		}{
			{"retry", tryRetry},
			{"resolve not executed", tryResolveNotExecuted},
			{"resolve completed", tryResolveCompleted},
			{"resolve step", tryResolveStep},
			{"history", tryHistory},
			{"executions", tryAuditOfExecutions},
			{"reveal", tryReveal},
			{"extend", tryExtend},
			{"bust", tryBust},
			{"outbox", tryOutbox},
		} {
			t.Run(try.name, func(t *testing.T) { try.test(t, s) })
		}
	}, servers.UnlessAllStores("SQLite", "PostgreSQL")...)
}

// booking is what a phased operation carries.
type booking struct {
	Guest  string `json:"guest"`
	Charge string `json:"charge"`
}

// hostileText is what a tenant may put into a key or a scope to write to the operator's terminal.
const hostileText = "\x1b[2J\x1b]0;owned\x07\r\nfake line \u202e\xff"

func newService(t *testing.T, url string) *service {
	t.Helper()
	opened, err := storeurl.OpenStore(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = opened.Close() })
	s := &service{store: opened, url: url}
	s.guard, err = onceward.New(opened, onceward.Config{
		Secret: []byte(serviceSecret), Namespace: "test", TraceID: func(context.Context) string { return "4bf92f3577b34da6" },
		Logger: slog.New(slog.DiscardHandler), StoreTimeout: await.Limit, SettleTimeout: await.Limit,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.paid = s.do(t, "alice", "order-paid", nil)
	s.unknown = s.do(t, "alice", "order-unknown", onceward.OutcomeUnknown(errors.New("the bank hung up")))
	s.do(t, "alice", "order-released", onceward.NotExecuted(errors.New("the bank was closed")))
	s.dead = s.do(t, "bob", "order-dead", onceward.OutcomeUnknown(errors.New("the bank hung up")))
	s.giveUp(t, s.dead)
	s.hostile = s.do(t, "mallory"+hostileText, "key"+hostileText, onceward.OutcomeUnknown(errors.New("error"+hostileText)))
	s.phased = s.book(t, "carol", "booking-1")
	s.lost = s.lose(t, "dave", "order-lost")
	s.addMessages(t)
	return s
}

// do runs an operation that ends so.
func (s *service) do(t *testing.T, scope, key string, end error) store.ID {
	t.Helper()
	return s.doOperation(t, "POST /payments", scope, key, end)
}

// doOperation runs an operation of that name that ends so.
func (s *service) doOperation(t *testing.T, operation, scope, key string, end error) store.ID {
	t.Helper()
	call := onceward.Call{Scope: scope, Key: key, Operation: operation, Payload: []byte(key)}
	_, err := s.guard.Do(t.Context(), call, func(ctx context.Context) ([]byte, error) {
		onceward.FromContext(ctx).SetProviderID("pi_" + key)
		return []byte(`{"id":"secret body of ` + key + `"}`), end
	}, onceward.Reserved(onceward.FailureUnknown))
	if (err == nil) != (end == nil) {
		t.Fatalf("an operation that should end with %v: %v", end, err)
	}
	return store.ID{Scope: scope, Key: key}
}

// lose leaves an operation as a process that dies in the midst of it does: no sweeper runs.
func (s *service) lose(t *testing.T, scope, key string) store.ID {
	t.Helper()
	id := store.ID{Scope: scope, Key: key}
	_, err := s.store.Reserve(t.Context(), &store.Reservation{
		ID: id, Operation: "POST /payments", Fingerprints: []store.Fingerprint{{Secret: 1}}, Nonce: store.Nonce{1},
		Lease: time.Microsecond, Retention: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	await.That(t, "its owner counts as lost", func() bool { // on DynamoDB nodes allow for clocks that differ
		return strings.Contains(s.must(t, "unknown", "list", "--lost"), id.Hash())
	})
	return id
}

// giveUp makes an unknown operation a dead letter, as a poller does.
func (s *service) giveUp(t *testing.T, id store.ID) {
	t.Helper()
	reconciler, _ := store.As[store.Reconciler](s.store)
	claim := store.Claim{ID: id, Attempt: s.record(t, id).Attempt}
	if err := reconciler.BeginReconcile(t.Context(), claim, 0, time.Minute); err != nil {
		t.Fatal(err)
	}
	err := reconciler.Postpone(t.Context(), claim, store.Postponement{Count: 1, MaxAttempts: 1, Reason: "the bank is down"})
	if err != nil {
		t.Fatal(err)
	}
}

// book runs a phased operation whose second step is in doubt.
func (s *service) book(t *testing.T, scope, key string) store.ID {
	t.Helper()
	operation, err := phase.New(phase.Definition[booking]{
		Name: "POST /bookings",
		Steps: []phase.Step[booking]{
			phase.External("hold", func(context.Context, string, *booking) error { return nil }),
			phase.External("charge", func(context.Context, string, *booking) error {
				return onceward.OutcomeUnknown(errors.New("the bank hung up"))
			}),
			phase.External("confirm", func(context.Context, string, *booking) error { return nil }),
		},
		Answer: func(b *booking) phase.Answer { return phase.JSON(http.StatusCreated, b) },
	})
	if err != nil {
		t.Fatal(err)
	}
	call := onceward.Call{Scope: scope, Key: key, Payload: []byte(key)}
	if _, err := operation.Do(t.Context(), s.guard, call, booking{Guest: "secret guest"}); err == nil {
		t.Fatal("the booking has succeeded")
	}
	return store.ID{Scope: scope, Key: key}
}

// addMessages adds a message that waits, and one that is a dead letter, where the store keeps messages.
func (s *service) addMessages(t *testing.T) {
	t.Helper()
	db, ok := s.store.(*storeurl.Database)
	if !ok {
		return
	}
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, topic := range []string{"charges", "mails"} {
		err := db.InTx(t.Context(), func(ctx context.Context) error {
			id, err := box.Add(ctx, onceward.Tx(ctx), outbox.Message{
				Topic: topic, AggregateID: "o1", Type: "order.paid", Payload: []byte(`{"card":"secret payload"}`),
			})
			if topic == "charges" {
				s.letter = id
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	claimed, err := db.ClaimMessages(t.Context(), []outbox.ClaimRequest{{Topic: "charges", Limit: 1}}, time.Minute)
	if err != nil || len(claimed) != 1 {
		t.Fatalf("claimed %d messages, %v", len(claimed), err)
	}
	if err := db.RecordEffect(t.Context(), claimed[0].Lease(), "", []byte("a secret answer")); err != nil {
		t.Fatal(err)
	}
	_, err = db.FinishMessages(t.Context(), []outbox.Outcome{{
		Lease: claimed[0].Lease(), State: outbox.StateHolding, Attempts: 5, Error: "the receiver said no",
	}})
	if err != nil {
		t.Fatal(err)
	}
}

func (s *service) record(t *testing.T, id store.ID) store.Record {
	t.Helper()
	rec, err := s.store.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// audited reads what was written to the audit about an ID.
func (s *service) audited(t *testing.T, id store.ID) []store.AuditEntry {
	t.Helper()
	auditor, _ := store.As[store.Auditor](s.store)
	entries, err := auditor.Audit(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

// onceward runs a command on the store.
func (s *service) onceward(t *testing.T, args ...string) proctest.Result {
	t.Helper()
	return runCommand(t, []string{"ONCEWARD_STORE=" + s.url}, args...)
}

// runCommand runs a command to its end.
func runCommand(t *testing.T, env []string, args ...string) proctest.Result {
	t.Helper()
	program, err := builtProgram()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(program, args...)
	command.Env = append(os.Environ(), env...)
	result := proctest.Run(t, command)
	wantHarmless(t, result.Stdout+result.Stderr)
	return result
}

// wantHarmless fails the test if what was written would do more to a terminal than be read.
func wantHarmless(t *testing.T, text string) {
	t.Helper()
	if strings.ContainsAny(text, "\x1b\x07\r\u202e\u009b") || strings.ToValidUTF8(text, "") != text {
		t.Errorf("the terminal would obey this: %q", text)
	}
}

// must runs a command that has to succeed, and returns what it says.
func (s *service) must(t *testing.T, args ...string) string {
	t.Helper()
	result := s.onceward(t, args...)
	if result.Code != exitOK {
		t.Fatalf("onceward %q: exit code %d: %s%s", args, result.Code, result.Stdout, result.Stderr)
	}
	return result.Stdout
}

// wantCode runs a command that has to end so, and say why.
func (s *service) wantCode(t *testing.T, code int, says string, args ...string) {
	t.Helper()
	result := s.onceward(t, args...)
	if result.Code != code || !strings.Contains(result.Stderr, says) {
		t.Errorf("onceward %q: exit code %d, want %d and %q: %s%s", args, result.Code, code, says, result.Stdout,
			result.Stderr)
	}
}

// objects runs a command with --json, and reads what it writes, a value a line.
func objects[T any](t *testing.T, s *service, args ...string) (values []T) {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewBufferString(s.must(t, append(args, "--json")...)))
	for decoder.More() {
		var value T
		if err := decoder.Decode(&value); err != nil {
			t.Fatalf("onceward %q: %v", args, err)
		}
		values = append(values, value)
	}
	return values
}

// says fails the test if a text lacks one of some parts.
func says(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("it does not say %q:\n%s", part, text)
		}
	}
}

// by is who acts in tests.
var by = reconcile.By{Who: "ann", Why: "asked the bank"}

// acting are the flags of an act that is meant.
func acting(args ...string) []string {
	return append(args, "--who", by.Who, "--why", by.Why, "--yes")
}
