package stores_test

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sealed"
)

// TestMessageWithoutTheKey: a worker that lacks the key, or the ring, delivers nothing, keeps the order of the
// aggregate and leaves the message for one that has it.
func TestMessageWithoutTheKey(t *testing.T) {
	t.Parallel()
	inside := openFile(t)
	s := seal(t, inside, ring(1))
	box, err := outbox.New(s, outbox.Config{})
	must(t, err)
	must(t, s.InTx(t.Context(), func(ctx context.Context) error {
		var errs []error
		for _, body := range []string{"first", "second"} {
			_, err := box.Add(ctx, onceward.Tx(ctx), outbox.Message{Topic: "t", Type: "x", AggregateID: "a", Payload: []byte(body)})
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}))
	var delivered []string
	once := func(s outbox.Store) {
		t.Helper()
		worker, err := outbox.NewWorker(s, outbox.WorkerConfig{Logger: quiet, Routes: map[string]outbox.Route{"t": {
			MinBackoff: 200 * time.Millisecond, MaxBackoff: 200 * time.Millisecond,
			Handler: func(_ context.Context, d *outbox.Delivery) (outbox.Result, error) {
				delivered = append(delivered, string(d.Payload))
				return outbox.Result{}, nil
			},
		}}})
		must(t, err)
		_, err = worker.RunOnce(t.Context())
		must(t, err)
	}
	for name, s := range map[string]outbox.Store{"no ring": inside, "another key": seal(t, inside, ring(2))} {
		once(s)
		if len(delivered) > 0 {
			t.Errorf("%s: delivered %q", name, delivered)
		}
	}
	entries, err := seal(t, inside, ring(2)).Messages(t.Context(), outbox.Filter{})
	if err != nil || len(entries) != 2 || !errors.Is(entries[0].Unreadable, store.ErrUnreadable) ||
		!strings.Contains(entries[0].LastError, "unreadable") {
		t.Errorf("listed without the key: %+v, %v", entries, err)
	}
	await.That(t, "two messages are delivered", func() bool {
		once(s)
		return len(delivered) >= 2
	})
	if !slices.Equal(delivered, []string{"first", "second"}) {
		t.Errorf("with the key %q is delivered", delivered)
	}
}

// TestMessagesInUse: the resealer tells which keys the messages of an outbox need.
func TestMessagesInUse(t *testing.T) {
	t.Parallel()
	inside := openFile(t)
	for _, id := range []uint32{1, 1, 2} {
		s := seal(t, inside, ring(id))
		box, err := outbox.New(s, outbox.Config{})
		must(t, err)
		must(t, s.InTx(t.Context(), func(ctx context.Context) error {
			_, err := box.Add(ctx, onceward.Tx(ctx), outbox.Message{Topic: "t", Type: "x"})
			return err
		}))
	}
	resealer, err := sealed.NewResealer(seal(t, inside, ring(2, 1)), sealed.ResealerConfig{Logger: quiet, Batch: 1})
	must(t, err)
	report, err := resealer.RunOnce(t.Context())
	if err != nil || report.InUse[1].Messages != 2 || report.InUse[2].Messages != 1 || !report.NeedsKey(1) {
		t.Errorf("%+v, %v", report, err)
	}
}

// TestWaysIn: these functions take messages past the methods of a store, and TestCanary uses each of them. A further
// one has to be tried there before it is named here.
func TestWaysIn(t *testing.T) {
	t.Parallel()
	want := []string{"postgres.AddMessage"}
	var found []string
	root := filepath.Join("..", "..", "..", "store")
	must(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
			strings.Contains(path, "storetest") {
			return err
		}
		files := token.NewFileSet()
		parsed, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			return err
		}
		for _, d := range parsed.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv != nil || !f.Name.IsExported() {
				continue
			}
			var signature strings.Builder
			if err := printer.Fprint(&signature, files, f.Type); err != nil {
				return err
			}
			if strings.Contains(signature.String(), "outbox.") {
				found = append(found, parsed.Name.Name+"."+f.Name.Name)
			}
		}
		return nil
	}))
	slices.Sort(found)
	if !slices.Equal(found, want) {
		t.Errorf("messages get into a store by %v, and by %v when this test was written", found, want)
	}
}
