package stores_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sealed"
)

// TestCanary: a secret that goes through requests, answers, recovery data, messages and evidence is found in no file of
// the database, no log, no observer's event and no error. The same without a seal is found in each kind of file, so
// that the search is worth something.
func TestCanary(t *testing.T) {
	t.Parallel()
	for _, db := range databases {
		t.Run(db.name, func(t *testing.T) {
			t.Parallel()
			at := db.start(t)
			told := &notes{}
			secret, control := canary(), canary()
			live(t, db, seal(t, at.open(t, "sealed", told), ring(1)), told, secret)
			live(t, db, at.open(t, "plain", told), &notes{}, control)
			at.settle(t)
			if files := filesWith(t, at.dirs, secret); len(files) > 0 {
				t.Errorf("the secret is in %v", files)
			}
			files := filesWith(t, at.dirs, control)
			for _, pattern := range at.held {
				if !slices.ContainsFunc(files, func(f string) bool { return matches(t, pattern, f) }) {
					t.Errorf("what is not sealed is not found in %s either, only in %v: the search is of no use", pattern, files)
				}
			}
			if text := told.String(); strings.Contains(text, secret) {
				t.Errorf("the secret is in the log, in an event or in an error: %s", around(text, secret))
			} else if !strings.Contains(text, "DecidedEvent") {
				t.Error("no event was observed")
			}
		})
	}
}

func matches(t *testing.T, pattern, file string) bool {
	t.Helper()
	matched, err := filepath.Match(pattern, file)
	must(t, err)
	return matched
}

// canary is a secret that is found wherever it is.
func canary() string {
	var b [12]byte
	_, _ = rand.Read(b[:])
	return "canary" + hex.EncodeToString(b[:])
}

// notes are what logs, observers and errors say.
type notes struct {
	mu   sync.Mutex
	text strings.Builder
}

func (n *notes) Write(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.text.Write(p)
}

func (n *notes) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.text.String()
}

func (n *notes) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(n, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (n *notes) Observe(_ context.Context, e onceward.ObserverEvent) {
	_, _ = fmt.Fprintf(n, "%T %+v\n", e, e)
}

// note keeps the text of an error that is expected.
func (n *notes) note(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
	_, _ = fmt.Fprintf(n, "%v %+v\n", err, err)
}

func around(text, found string) string {
	i := strings.Index(text, found)
	return text[max(0, i-200):min(len(text), i+200)]
}

// filesWith names the files that hold a text, as it is or in the digits that a log shows bytes in. A file that goes
// while it is read held nothing that stays.
func filesWith(t *testing.T, dirs []string, text string) (found []string) {
	t.Helper()
	digits := []byte(hex.EncodeToString([]byte(text)))
	for _, dir := range dirs {
		must(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) || err == nil && !entry.Type().IsRegular() {
				return nil
			}
			if err != nil {
				return err
			}
			content, err := os.ReadFile(path)
			if bytes.Contains(content, []byte(text)) || bytes.Contains(content, digits) {
				found = append(found, strings.TrimPrefix(path, dir+string(filepath.Separator)))
			}
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}))
	}
	return found
}

// live sends the secret through everything that a store keeps.
func live(t *testing.T, db sealedDatabase, s store.Store, told *notes, secret string) {
	t.Helper()
	guard, err := onceward.New(s, onceward.Config{
		Scope:  onceward.SingleScope("acme"),
		Secret: []byte("sixteen bytes and some more"), StoreTimeout: await.Limit, Logger: told.logger(), Observer: told,
	})
	must(t, err)
	reserved := guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := onceward.FromContext(r.Context()).Carry(r.Context(), map[string]string{"secret": secret}); err != nil {
			t.Error(err)
		}
		if r.URL.Path == "/lost" {
			panic(secret)
		}
		answerSecret(w, http.StatusAccepted, secret)
	}), onceward.Reserved(onceward.FailureUnknown), onceward.OperationName("POST /reserved"))
	sendAll(t, reserved, "/reserved", secret)
	func() {
		defer func() { _ = recover() }()
		send(reserved, "/lost", secret)
	}()
	lost := store.ID{Scope: "acme", Key: "key-of-/lost"}
	if rec, err := s.Get(t.Context(), lost); err != nil || rec.State != store.StateUnknown || !bytes.Contains(rec.Data, []byte(secret)) {
		t.Errorf("the lost operation is %s and carries %q, %v", rec.State, rec.Data, err)
	}
	evidence(t, s, told, secret)
	if messages, ok := store.As[outbox.Store](s); ok {
		liveInTx(t, db, guard, messages, told, secret)
	}
}

// liveInTx sends the secret through transactions and messages.
func liveInTx(t *testing.T, db sealedDatabase, guard *onceward.Guard, s outbox.Store, told *notes, secret string) {
	t.Helper()
	box, err := outbox.New(s, outbox.Config{})
	must(t, err)
	message := func(topic string) outbox.Message {
		return outbox.Message{
			Topic: topic, Type: "payment.created", Payload: []byte(`{"secret":"` + secret + `"}`),
			Headers: map[string]string{"secret": secret},
		}
	}
	inTx := guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		_, addErr := box.Add(ctx, onceward.Tx(ctx), message("first"))
		_, answerErr := box.AddToAnswer(ctx, message("second"))
		errs := []error{addErr, answerErr}
		for _, add := range db.add {
			errs = append(errs, add(ctx, box, message("third")))
		}
		if err := errors.Join(errs...); err != nil {
			t.Error(err)
		}
		answerSecret(w, http.StatusCreated, secret)
	}), onceward.Transactional(), onceward.OperationName("POST /tx"))
	sendAll(t, inTx, "/tx", secret)
	deliver(t, s, told, secret, 2+len(db.add))
}

func answerSecret(w http.ResponseWriter, status int, secret string) {
	w.Header().Set("X-Secret", secret)
	w.WriteHeader(status)
	_, _ = io.WriteString(w, secret+strings.Repeat(" and more", 100))
}

// sendAll sends a request, its retries, and another one under its key.
func sendAll(t *testing.T, h http.Handler, path, secret string) {
	t.Helper()
	for range 3 {
		if got := send(h, path, secret); !strings.Contains(got.Body.String(), secret) || got.Header().Get("X-Secret") != secret {
			t.Errorf("%s: %d %s", path, got.Code, got.Body)
		}
	}
	if got := send(h, path, secret+"!"); got.Code != http.StatusUnprocessableEntity {
		t.Errorf("%s with another body: %d", path, got.Code)
	}
}

// send sends a request whose key and path are the same.
func send(h http.Handler, path, secret string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(`{"secret":"`+secret+`"}`))
	r.Header.Set("Idempotency-Key", "key-of-"+path)
	r.Header.Set("X-Secret", secret)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// evidence keeps recovery data, a late completion and an external event, and provokes the errors that show records.
func evidence(t *testing.T, s store.Store, told *notes, secret string) {
	t.Helper()
	ctx := t.Context()
	id := store.ID{Scope: "acme", Key: "phased"}
	v, err := s.Reserve(ctx, &store.Reservation{
		ID: id, Operation: "POST /phased", Fingerprints: []store.Fingerprint{{Rules: 1}}, Nonce: store.Nonce{1},
		OnLost: store.LostResume, Lease: time.Hour, Retention: time.Hour,
	})
	must(t, err)
	c := store.Claim{ID: id, Attempt: v.Record.Attempt}
	data := []byte(`{"secret":"` + secret + `"}`)
	must(t, s.Checkpoint(ctx, c, store.Checkpoint{Point: "charged", Data: data}))
	if able, ok := store.As[store.TxCheckpointer](s); ok {
		must(t, able.CheckpointTx(ctx, c, time.Hour, func(context.Context) (store.Checkpoint, error) {
			return store.Checkpoint{Point: "shipped", Data: data}, nil
		}))
	}
	response := store.Response{Status: 201, Header: []store.HeaderField{{Name: "X", Value: secret}}, Body: data}
	_, err = s.Complete(ctx, c, &store.Completion{Response: response})
	must(t, err)
	_, err = s.Complete(ctx, c, &store.Completion{Response: store.Response{Status: 500, Body: []byte(secret + "!")}})
	told.note(t, err, store.ErrFenced)
	must(t, s.(store.LateCompletionKeeper).AddLateCompletion(ctx, store.LateCompletion{Claim: c, Response: response}))
	_, err = s.(store.ExternalEventKeeper).AddExternalEvent(ctx, store.ExternalEvent{
		Source: "provider", EventID: "evt_1", Scope: "acme", Subject: "ch_1", Body: data,
	})
	must(t, err)
	if sealed, ok := s.(*sealed.Store); ok {
		_, err = seal(t, sealed.Unwrap(), ring(2)).Get(ctx, id)
		told.note(t, err, store.ErrUnreadable)
	}
}

// deliver lets each message fail once, and delivers it then.
func deliver(t *testing.T, s outbox.Store, told *notes, secret string, want int) {
	t.Helper()
	var mu sync.Mutex
	delivered := 0
	route := outbox.Route{MinBackoff: time.Millisecond, Handler: func(_ context.Context, d *outbox.Delivery) (outbox.Result, error) {
		mu.Lock()
		defer mu.Unlock()
		if !bytes.Contains(d.Payload, []byte(secret)) || d.Headers["secret"] != secret {
			t.Errorf("a message comes as %q %v", d.Payload, d.Headers)
		}
		if d.Attempts == 1 {
			return outbox.Result{}, errors.New("the receiver is away")
		}
		delivered++
		return outbox.Result{}, nil
	}}
	worker, err := outbox.NewWorker(s, outbox.WorkerConfig{
		Routes: map[string]outbox.Route{"first": route, "second": route, "third": route}, Observer: told, Logger: told.logger(),
	})
	must(t, err)
	await.That(t, "the messages are delivered", func() bool {
		_, err := worker.RunOnce(t.Context())
		must(t, err)
		mu.Lock()
		defer mu.Unlock()
		return delivered >= want
	})
	if delivered != want {
		t.Errorf("%d messages were delivered, want %d", delivered, want)
	}
}
