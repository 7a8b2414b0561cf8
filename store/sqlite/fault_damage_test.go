package sqlite_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

const pageSize = 4096

// closedFile is the content of a database that was closed in order, with some completed records in it.
func closedFile(t testing.TB, keys []string) []byte {
	t.Helper()
	path := newFile(t)
	s := openBusiness(t, path)
	for _, key := range keys {
		transacted(t, s, reservation(key), func(ctx context.Context, v store.Verdict) store.Settlement {
			return inserting(key)(ctx, v)
		}, store.DecisionExecute, "E1")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(content)%pageSize != 0 {
		t.Fatalf("the file has %d bytes, which are no pages of %d", len(content), pageSize)
	}
	return content
}

func manyKeys(n int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprintf("key-%04d-%s", i, strings.Repeat("x", 100)))
	}
	return keys
}

// damages are ways in which a page can be lost as a whole. A flipped bit that leaves a page well-formed is not among
// them: SQLite keeps no checksums of its own.
var damages = map[string]func(page []byte){
	"zeroed":   func(page []byte) { clear(page) },
	"garbage":  func(page []byte) { copy(page, bytes.Repeat([]byte{0xde, 0xad, 0xbe, 0xef}, len(page)/4)) },
	"header":   func(page []byte) { page[0] ^= 0x40 },
	"pointers": func(page []byte) { copy(page[8:64], bytes.Repeat([]byte{0xff}, 56)) },
}

// TestDamagedPages destroys each page of a file in turn, before it is opened. Whatever is then asked for, an answer is
// the right one or an error, and what was executed before is not executed again.
func TestDamagedPages(t *testing.T) {
	t.Parallel()
	keys := manyKeys(60)
	valid := closedFile(t, keys)
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refused, failed := 0, 0
			for page := 1; page <= len(valid)/pageSize; page++ {
				content := bytes.Clone(valid)
				target := content[(page-1)*pageSize : page*pageSize]
				if page == 1 {
					target = target[100:] // the file's own header is another test
				}
				damage(target)
				r, f := askDamaged(t, content, keys, fmt.Sprintf("page %d %s", page, name))
				refused += r
				failed += f
			}
			if failed == 0 || refused == 0 {
				t.Errorf("%d files were refused and %d requests failed: the damage was not noticed", refused, failed)
			}
		})
	}
}

// askDamaged asks a damaged file for everything that it once knew.
func askDamaged(t *testing.T, content []byte, keys []string, rule string) (refused, failed int) {
	t.Helper()
	path := newFile(t)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := sqlite.Open(t.Context(), path)
	if err != nil {
		return 1, 0
	}
	defer s.Close() // a damaged file may fail to close in order
	for _, key := range keys {
		v, err := s.Transact(t.Context(), reservation(key), never(t, rule+": "+key))
		switch {
		case err == nil && v.Decision == store.DecisionReplay && string(v.Record.Response.Body) == key:
		case errors.Is(err, store.ErrUnavailable), errors.Is(err, store.ErrUnreadable):
			failed++
		default:
			t.Errorf("%s: %q got (%s, %q, %v), want the stored answer or an error", rule, key, v.Decision,
				v.Record.Response.Body, err)
		}
	}
	return 0, failed
}

// TestDamageWhileOpen destroys the tables under an open store, and looks through the guard.
func TestDamageWhileOpen(t *testing.T) {
	t.Parallel()
	keys := manyKeys(200)
	path := newFile(t)
	if err := os.WriteFile(path, closedFile(t, keys), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := sqlite.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() // a damaged file may fail to close in order
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteAt(bytes.Repeat([]byte{0xee}, int(info.Size())-pageSize), pageSize); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	guard := newGuard(t, s)
	for _, options := range [][]onceward.Option{
		{onceward.Transactional()},
		{onceward.Reserved(onceward.FailureUnknown)},
	} {
		handler := paying()
		h := guard.Handler(handler, options...)
		a := post(h, keys[17])
		a.wantProblem(t, http.StatusServiceUnavailable, "store-unavailable", "scenario 16: a damaged file")
		if strings.Contains(a.body, "SQLite") || strings.Contains(a.body, path) {
			t.Errorf("A1: the answer tells of the inside: %s", a.body)
		}
		handler.wantRuns(t, 0, "L2: fail closed")
	}
	if _, err := s.Get(t.Context(), idOf(keys[17])); !errors.Is(err, store.ErrUnavailable) ||
		!strings.Contains(err.Error(), "damaged") {
		t.Errorf("Get got %v, want ErrUnavailable that says damaged", err)
	}
}

// TestDamagedRecord: a value that is not a record is unreadable, not absent.
func TestDamagedRecord(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	s := openBusiness(t, path)
	raw := openRaw(t, path)
	handler := paying()
	h := newGuard(t, s).Handler(handler, onceward.Transactional())
	for i, value := range []string{
		`x''`, `x'00'`, `x'01'`, `zeroblob(400)`, `x'0101010101'`,
		`substr(record, 1, length(record) - 1)`, `record || x'00'`,
	} {
		key := fmt.Sprint("key-", i)
		post(h, key).want(t, http.StatusCreated, false, "E1")
		runs := handler.runs.Load()
		if err := raw.Exec(`UPDATE onceward_record SET record = CAST(` + value + ` AS BLOB) WHERE id = (SELECT id FROM onceward_record ORDER BY rowid DESC LIMIT 1)`); err != nil {
			t.Fatal(err)
		}
		post(h, key).wantProblem(t, http.StatusInternalServerError, "record-unreadable", "S8: "+value)
		handler.wantRuns(t, runs, "S8: fail closed on "+value)
		if _, err := s.Reserve(t.Context(), reservation(key)); !errors.Is(err, store.ErrUnreadable) {
			t.Errorf("S8: reserve of %s got %v, want ErrUnreadable", value, err)
		}
	}
}
