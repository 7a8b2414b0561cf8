package onceward_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// exampleSecret would come from the environment: random bytes, the same on every node.
var exampleSecret = []byte("sixteen random bytes or more")

// newExampleGuard is the guard of a shop with a single caller, which keeps its records in memory.
func newExampleGuard() *onceward.Guard {
	guard, err := onceward.New(memory.New(), onceward.Config{
		Scope: onceward.SingleScope("shop"), Secret: exampleSecret, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		log.Fatal(err)
	}
	return guard
}

// show sends a request as a client would, and prints what comes back.
func show(h http.Handler, key, body string) {
	r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(body))
	r.Pattern = "POST /payments" // as a router sets it
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	said := w.Body.String()
	var problem onceward.Problem
	if json.Unmarshal(w.Body.Bytes(), &problem) == nil {
		said = problem.Code
	}
	if w.Header().Get("Idempotent-Replayed") != "" {
		said += " (replayed)"
	}
	fmt.Printf("%d: %s\n", w.Code, said)
}

// A payment is made once, however often the client sends it.
func Example() {
	guard, err := onceward.New(memory.New(), onceward.Config{Scope: onceward.SingleScope("shop"), Secret: exampleSecret})
	if err != nil {
		log.Fatal(err)
	}
	payments := 0
	mux := http.NewServeMux()
	mux.Handle("POST /payments", guard.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		payments++
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "payment %d", payments)
	}, onceward.Reserved(onceward.FailureUnknown)))

	show(mux, "order-7", `{"amount": 10}`)
	show(mux, "order-7", `{"amount": 10.0}`) // the same number
	show(mux, "order-7", `{"amount": 11}`)
	show(mux, "order-8", `{"amount": 11}`)
	// Output:
	// 201: payment 1
	// 201: payment 1 (replayed)
	// 422: mismatch
	// 201: payment 2
}

// A message that a queue delivers twice is handled once.
func ExampleGuard_Do() {
	guard := newExampleGuard()
	sendMail := func(context.Context) ([]byte, error) {
		fmt.Println("sending the mail")
		return []byte("sent"), nil
	}
	for range 2 {
		message := onceward.Call{Scope: "mail-queue", Key: "message-1", Operation: "send mail", Payload: []byte("Hello")}
		result, err := guard.Do(context.Background(), message, sendMail, onceward.Reserved(onceward.FailureUnknown))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s, replayed: %t\n", result.Value, result.Replayed)
	}
	// Output:
	// sending the mail
	// sent, replayed: false
	// sent, replayed: true
}

// What an error means is said by the function where it knows, and by the route where it does not.
func ExampleNotExecuted() {
	guard := newExampleGuard()
	connected := false
	charge := func(context.Context) ([]byte, error) {
		if !connected {
			return nil, onceward.NotExecuted(errors.New("no connection: nothing was sent"))
		}
		return nil, errors.New("the connection broke after the request was sent")
	}
	call := onceward.Call{Scope: "jobs", Key: "job-1", Operation: "charge"}
	for range 3 {
		_, err := guard.Do(context.Background(), call, charge, onceward.Reserved(onceward.FailureUnknown))
		fmt.Println("unknown:", errors.Is(err, store.ErrOutcomeUnknown))
		connected = true
	}
	// Output:
	// unknown: false
	// unknown: true
	// unknown: true
}

// Three routes whose handlers all answer 500. What that means, only their author can know.
func ExampleReserved() {
	guard := newExampleGuard()
	fail := func(w http.ResponseWriter, _ *http.Request) {
		fmt.Print("executed, ")
		w.WriteHeader(http.StatusInternalServerError)
		io.WriteString(w, "failed")
	}
	for _, choice := range []struct {
		name    string
		failure onceward.Failure
	}{
		{"a failure means that nothing happened", onceward.FailureRetry},
		{"a failure is an answer that stays", onceward.FailureStore},
		{"after a failure it is not known", onceward.FailureUnknown},
	} {
		fmt.Println(choice.name)
		h := guard.HandlerFunc(fail, onceward.Reserved(choice.failure))
		key := fmt.Sprint("order-", choice.failure)
		show(h, key, `{}`)
		show(h, key, `{}`)
	}
	// Output:
	// a failure means that nothing happened
	// executed, 500: failed
	// executed, 500: failed
	// a failure is an answer that stays
	// executed, 500: failed
	// 500: failed (replayed)
	// after a failure it is not known
	// executed, 500: failed
	// 409: outcome-unknown
}

// A handler sends a key of its own to the next system, the same with every attempt, and asks whether it may still act.
func ExampleFromContext() {
	guard := newExampleGuard()
	h := guard.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		op := onceward.FromContext(r.Context())
		if err := op.CheckLease(); err != nil {
			op.NotExecuted()
			return
		}
		fmt.Println("charging with the key", op.DownstreamKey("charge"))
		op.SetProviderID("ch_1")
		w.WriteHeader(http.StatusCreated)
		io.WriteString(w, "charged")
	}, onceward.Reserved(onceward.FailureUnknown), onceward.Retain(30*24*time.Hour))
	show(h, "order-7", `{}`)
	// Output:
	// charging with the key gthrod6nknhkvbu356v6mzzd7qoulel3eiu6oylhi2ya
	// 201: charged
}

// A program that must not start with a route that was forgotten.
func ExampleAuditStrict() {
	guard := newExampleGuard()
	create := func(http.ResponseWriter, *http.Request) {}
	mux := onceward.NewMux()
	mux.Handle("POST /payments", guard.HandlerFunc(create, onceward.Reserved(onceward.FailureUnknown)))
	mux.HandleFunc("POST /refunds", create)
	mux.HandleFunc("POST /login", create)
	mux.HandleFunc("GET /payments", create)
	fmt.Println(onceward.AuditStrict(mux.Routes(), "POST /login"))
	// Output:
	// onceward: 1 route changes state and is not protected: POST /refunds: protect it with Guard.Handler, or exempt it by name
}

// The secret of the downstream keys is rotated. An operation keeps the keys that it has sent; new ones get others. A
// node without the secret of a record executes nothing, and derives no key for it.
func ExampleConfig_downstreamSecret() {
	ctx, s := context.Background(), memory.New()
	node := func(current []byte, old ...[]byte) *onceward.Guard {
		guard, err := onceward.New(s, onceward.Config{
			Scope: onceward.SingleScope("shop"), Secret: exampleSecret, Logger: slog.New(slog.DiscardHandler),
			DownstreamSecret: current, OldDownstreamSecrets: old,
		})
		if err != nil {
			log.Fatal(err)
		}
		return guard
	}
	first, second := []byte("random bytes of last year"), []byte("random bytes of this year")

	call := onceward.Call{Scope: "shop", Key: "order-7", Operation: "transfer"}
	var sent string
	_, _ = node(first).Do(ctx, call, func(ctx context.Context) ([]byte, error) {
		sent = onceward.FromContext(ctx).DownstreamKey("transfer") // the bank is sent this one
		return nil, errors.New("the bank did not answer")
	}, onceward.Reserved(onceward.FailureUnknown))
	rec, err := s.Get(ctx, store.ID{Scope: "shop", Key: "order-7"})
	if err != nil {
		log.Fatal(err)
	}

	// In three deploys, because nodes of two configurations meet while each rolls.
	for _, guard := range []*onceward.Guard{
		node(first, second), // 1. every node can read what is made with the new secret
		node(second, first), // 2. new operations use it
		node(second),        // 3. only when no record of the old one is left: here it is too early
	} {
		key, err := guard.DownstreamKey(&rec, "transfer")
		fmt.Println(key == sent, errors.Is(err, store.ErrUnreadable))
	}
	// Output:
	// true false
	// true false
	// false true
}

// All that a process does is under one roof: what is given last stops first, and wholly, before the next.
func ExampleRun() {
	guard := newExampleGuard()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	server := guard.Server(&http.Server{Handler: onceward.NewMux()}, listener, time.Minute)
	cleaner := onceward.WorkerFunc(func(ctx context.Context) error { // janitor.New gives a real one
		<-ctx.Done()
		fmt.Println("the cleaner stops")
		return nil
	})
	consumer := onceward.WorkerFunc(func(ctx context.Context) error {
		<-ctx.Done()
		fmt.Println("the consumer stops")
		return nil
	})
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Millisecond) // signal.NotifyContext, in a service
	defer stop()
	fmt.Println(onceward.Run(ctx, cleaner, server, consumer))
	// Output:
	// the consumer stops
	// the cleaner stops
	// <nil>
}

// A service gives the codes of problems the names that its clients know; here, as a test suite of the IETF draft may
// look for them, the sections that they are about.
func ExampleConfig_problemCode() {
	sections := map[string]string{
		"missing-key": "section-2.1", "invalid-key": "section-2.1", "mismatch": "section-2.2", "in-progress": "section-2.6",
	}
	guard, err := onceward.New(memory.New(), onceward.Config{
		Scope: onceward.SingleScope("shop"), Secret: exampleSecret, Logger: slog.New(slog.DiscardHandler),
		ProblemCode: func(code string) string { return cmp.Or(sections[code], code) },
	})
	if err != nil {
		log.Fatal(err)
	}
	pay := guard.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "paid") },
		onceward.Reserved(onceward.FailureUnknown))
	show(pay, "k,k", `{"amount":1}`)
	show(pay, "k", `{"amount":1}`)
	show(pay, "k", `{"amount":2}`)
	// Output:
	// 400: section-2.1
	// 200: paid
	// 422: section-2.2
}

// The error of a scope function carries a challenge, and the 401 contains it.
func ExampleUnauthenticated() {
	guard, err := onceward.New(memory.New(), onceward.Config{
		Secret: exampleSecret, Logger: slog.New(slog.DiscardHandler),
		Scope: func(r *http.Request) (string, error) {
			tenant, ok := map[string]string{"Bearer secret": "shop"}[r.Header.Get("Authorization")]
			if !ok {
				return "", onceward.Unauthenticated(`Bearer realm="payments"`)
			}
			return tenant, nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /payments", guard.Handler(http.NotFoundHandler(), onceward.Reserved(onceward.FailureUnknown)))
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/payments", nil))
	fmt.Println(w.Code, w.Header().Get("WWW-Authenticate"))
	// Output:
	// 401 Bearer realm="payments"
}
