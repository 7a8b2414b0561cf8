package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"io"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/cmd/onceward/internal/operate"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/proc/proctest"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sealed"
)

// TestConfirm: only a person who says yes has it done.
func TestConfirm(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		yes, person bool
		types       string
		goes        bool
	}{
		{yes: true, goes: true},
		{person: true, types: "y\n", goes: true},
		{person: true, types: " YES \n", goes: true},
		{person: true, types: "\n"},
		{person: true, types: "n\n"},
		{person: true, types: "yesterday\n"},
		{person: true},
		{types: "y\n"},
	} {
		var asked bytes.Buffer
		err := (&confirmFlags{Yes: test.yes}).confirm(t.Context(), strings.NewReader(test.types), &asked,
			"postgres://staging/db", test.person)
		if (err == nil) != test.goes || err != nil && !errors.Is(err, operate.ErrRefused) {
			t.Errorf("%+v: %v", test, err)
		}
		if asks := asked.Len() > 0; asks != (test.person && !test.yes) {
			t.Errorf("%+v: asked %q", test, asked.String())
		}
		if asked.Len() > 0 && !strings.Contains(asked.String(), "postgres://staging/db") {
			t.Errorf("%+v: asked without the store: %q", test, asked.String())
		}
	}
}

// TestInterruptIsNo: who interrupts at the question is not kept waiting for Enter, and nothing is done.
func TestInterruptIsNo(t *testing.T) {
	t.Parallel()
	silent, types := io.Pipe()
	t.Cleanup(func() { _ = types.Close() })
	ctx, interrupt := context.WithCancel(t.Context())
	asked := make(chan error, 1)
	go func() { asked <- (&confirmFlags{}).confirm(ctx, silent, io.Discard, "", true) }()
	interrupt()
	if err := await.Value(t, "the end of the question", asked); !errors.Is(err, operate.ErrRefused) {
		t.Errorf("interrupted: %v", err)
	}
}

// TestUnmoved: what a person has confirmed is done to the record that they were shown, and to no later one.
func TestUnmoved(t *testing.T) {
	t.Parallel()
	s := newService(t, stores["SQLite"](t))
	session, err := operate.Open(t.Context(), operate.Target{URL: s.url, Writes: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	shown := s.record(t, s.unknown)
	if err := unmoved(t.Context(), session, &shown); err != nil {
		t.Errorf("as it was shown: %v", err)
	}
	s.must(t, acting("unknown", "resolve", s.unknown.Hash(), "--completed", "--status", "201")...)
	if err := unmoved(t.Context(), session, &shown); !errors.Is(err, operate.ErrRefused) {
		t.Errorf("settled meanwhile: %v", err)
	}
}

// TestEmptyFilter: a variable that is empty in a script does not make all of some.
func TestEmptyFilter(t *testing.T) {
	t.Parallel()
	s := newService(t, stores["SQLite"](t))
	for _, args := range [][]string{
		{"dead", "retry", "--all", "--scope", ""},
		{"dead", "retry", "--all", "--operation", ""},
		{"outbox", "discard", "--all", "--topic", ""},
		{"outbox", "retry", "--all", "--limit", "-1"},
		{"dead", "retry", "--all", "--limit", "0"},
	} {
		s.wantCode(t, exitUsage, args[3], acting(args...)...)
	}
}

// TestActReachesTheFront: with the front in its URL, a bust leaves no old answer in the cache.
func TestActReachesTheFront(t *testing.T) {
	t.Parallel()
	front := servers.Redis(t).URL() + "?prefix=" + rand.Text()
	s := newService(t, "sqlite:"+filepath.Join(t.TempDir(), "store.db")+"?front="+url.QueryEscape(front))
	for range 3 { // the cache has the answer now
		s.do(t, s.paid.Scope, s.paid.Key, nil)
	}
	s.must(t, acting("keys", "bust", s.paid.Hash())...)
	v, err := s.store.Reserve(t.Context(), &store.Reservation{
		ID: s.paid, Fingerprints: []store.Fingerprint{{Secret: 1}}, Nonce: store.Nonce{1}, Lease: 1e9, Retention: 3600e9,
		Operation: "POST /payments",
	})
	if err != nil || v.Decision != store.DecisionExecute {
		t.Errorf("the key is answered with %s, %v", v.Decision, err)
	}
	says(t, s.must(t, "keys", "list"), s.unknown.Hash()) // looking goes past the front
}

// TestFrontCannotBeTold: what was done is said to be done, and that a cache may answer with the old answer for a while.
func TestFrontCannotBeTold(t *testing.T) {
	t.Parallel()
	s := newService(t, stores["SQLite"](t))
	s.url += "?front=redis://127.0.0.1:1/0"
	result := s.onceward(t, acting("keys", "bust", s.paid.Hash(), "--json")...)
	if result.Code != exitStale {
		t.Errorf("exit code %d: %s", result.Code, result.Stderr)
	}
	says(t, result.Stdout, `"done":true`, `"warning":"onceward: done, but an old answer can still be seen`)
	says(t, result.Stderr, "an old answer can still be seen, until 20")
	if _, err := s.store.Get(t.Context(), s.paid); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the record: %v", err)
	}
}

// TestSealed: sealed content is shown to who has the key ring alone, and an answer is sealed.
func TestSealed(t *testing.T) {
	t.Parallel()
	s := newService(t, stores["SQLite"](t))
	key := sealed.Key{ID: 7, Secret: bytes.Repeat([]byte("k"), 32)}
	inside, err := sealed.New(s.store, sealed.Config{Keys: []sealed.Key{key}})
	if err != nil {
		t.Fatal(err)
	}
	plain := s.guard
	if s.guard, err = onceward.New(inside, onceward.Config{
		Secret: []byte(serviceSecret), Logger: slog.New(slog.DiscardHandler),
		StoreTimeout: await.Limit, SettleTimeout: await.Limit,
	}); err != nil {
		t.Fatal(err)
	}
	paid, booked := s.do(t, "dave", "order-sealed", nil), s.book(t, "dave", "booking-sealed")
	s.guard = plain
	ring := file(t, "# the ring\n7:"+base64.StdEncoding.EncodeToString(key.Secret)+"\n")
	reveal := []string{"keys", "show", paid.Hash(), "--reveal", "--why", "a complaint"}
	text := s.must(t, reveal...)
	says(t, text, "sealed", "--seal-key-file")
	if strings.Contains(text, "secret body") {
		t.Errorf("sealed content is shown: %s", text)
	}
	says(t, s.must(t, append(reveal, "--seal-key-file", ring)...), "secret body of order-sealed")
	resolve := acting("unknown", "resolve", booked.Hash(), "--completed", "--status", "200", "--body-file", file(t, "the answer"))
	s.wantCode(t, exitUsage, "--seal-key-file", resolve...)
	s.must(t, append(resolve, "--seal-key-file", ring)...)
	if rec := s.record(t, booked); !rec.Response.IsSealed() {
		t.Errorf("the answer lies in the open: %+v", rec.Response)
	}
	s.wantCode(t, exitUsage, "ID:BASE64", append(reveal, "--seal-key-file", file(t, "nonsense"))...)
	s.wantCode(t, exitUsage, "32 random", append(reveal, "--seal-key-file", file(t, "1:c2hvcnQ="))...)
}

// TestSecretFiles: secrets come from files too, as editors leave them.
func TestSecretFiles(t *testing.T) {
	t.Parallel()
	s := newService(t, stores["SQLite"](t))
	rec := s.record(t, s.phased)
	key, err := s.guard.DownstreamKey(&rec, "charge")
	if err != nil {
		t.Fatal(err)
	}
	show := []string{"keys", "show", key, "--namespace", "test", "--secret-file"}
	says(t, s.must(t, append(show, file(t, serviceSecret+"\n"))...), s.phased.Hash(), key)
	says(t, s.must(t, append(show, file(t, "another secret, the current one"), "--old-secret-file", file(t, serviceSecret))...),
		s.phased.Hash())
	s.wantCode(t, exitNotFound, "no record has", append(show, file(t, "another secret, the wrong one"))...)
	s.wantCode(t, exitUsage, "too short", append(show, file(t, "short"))...)
	s.wantCode(t, exitUsage, "cannot be read", append(show, filepath.Join(t.TempDir(), "nothing"))...)
}

// TestCommandsToPaste: what show prints can be pasted, and names a store that was named by a flag unless it may hold a
// password.
func TestCommandsToPaste(t *testing.T) {
	t.Parallel()
	s := newService(t, stores["SQLite"](t))
	for store, want := range map[string]string{
		"sqlite:/var/db":                      " --store sqlite:/var/db",
		"sqlite:/var/my db":                   " --store 'sqlite:/var/my db'",
		"postgres://u:secret@h/db":            " --store URL",
		"postgres://u@h/db?password=secret":   " --store URL",
		"sqlite:a?front=redis://u:secret@h/0": " --store URL",
		"postgres://u@h/db":                   " --store postgres://u@h/db",
		os.Getenv("ONCEWARD_STORE"):           "",
	} {
		if got := (&storeFlags{Store: store}).suffix(); got != want {
			t.Errorf("%s is written %q, want %q", store, got, want)
		}
	}
	result := runCommand(t, nil, "keys", "show", s.unknown.Hash(), "--store", s.url)
	says(t, result.Stdout, "--not-executed --why 'REASON' --store "+s.url)
}

// TestCompletion: bash completes what the program says.
func TestCompletion(t *testing.T) {
	t.Parallel()
	result := runCommand(t, nil, "complete-words", "--", "keys", "list", "--state", "u")
	if result.Stdout != "unknown\n" || result.Code != exitOK {
		t.Errorf("exit code %d: %q", result.Code, result.Stdout)
	}
	bash := proctest.Run(t, exec.Command("bash", "-c", `onceward() { `+runAsDemo+`=1 '`+os.Args[0]+`' "$@"; }
		eval "$(onceward completion bash)"
		COMP_WORDS=(onceward unknown re); COMP_CWORD=2; _onceward; echo "${COMPREPLY[@]}"`))
	if got := strings.TrimSpace(bash.Stdout); got != "resolve retry" {
		t.Errorf("bash completes with %q: %s", got, bash.Stderr)
	}
}
