package routers_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/store/sqlite"
)

// item is a payment of a batch.
type item struct {
	key, account string
	amount       int
}

// outcome is what a client is told of an item: the id of a payment, or what failed.
type outcome struct {
	id, failed string
	retryable  bool
}

// batchService is what a recipe runs on.
type batchService struct {
	*testing.T
	protocol
	store *sqlite.Store
	url   string
	lose  atomic.Bool // the next reply
	leave atomic.Bool // the client does, when the next item has run
}

func newBatchService(t *testing.T, p protocol) *batchService {
	t.Helper()
	s := &batchService{T: t, protocol: p}
	var err error
	s.store, err = sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "payments.db"))
	s.must(err)
	t.Cleanup(func() { _ = s.store.Close() })
	s.must(s.store.Update(t.Context(), func(tx *sql.Tx) error {
		_, err := tx.ExecContext(t.Context(),
			`CREATE TABLE payment (id TEXT PRIMARY KEY, account TEXT CHECK (account <> 'broken'), amount BIGINT)`)
		return err
	}))
	guard, err := onceward.New(s.store, onceward.Config{
		Scope:  onceward.SingleScope("shop"),
		Secret: []byte("the secret of the tests"), StoreTimeout: await.Limit, Logger: quiet,
		Observer: onceward.ObserverFunc(func(ctx context.Context, e onceward.ObserverEvent) {
			if _, ok := e.(onceward.ExecutedEvent); ok && s.leave.Swap(false) {
				ctx.Value(leaveKey{}).(context.CancelFunc)()
			}
		}),
	})
	s.must(err)
	procedure, err := guard.Procedure(onceward.Transactional())
	s.must(err)
	handler := p.handler(s, procedure, func(r *http.Request) (string, error) {
		if r.Header.Get("Authorization") == "" {
			return "", onceward.ErrUnauthenticated
		}
		return "shop", nil
	})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, leave := context.WithCancel(r.Context())
		defer leave()
		r = r.WithContext(context.WithValue(ctx, leaveKey{}, leave))
		if !s.lose.Swap(false) {
			handler.ServeHTTP(w, r)
			return
		}
		handler.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

// leaveKey is where the context of a request has what ends it, as the server does when the client has left.
type leaveKey struct{}

func (s *batchService) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// post sends a body, and returns the status and the answer; an error if there is none.
func (s *batchService) post(body string, header ...string) (int, []byte, error) {
	r, err := http.NewRequestWithContext(s.Context(), http.MethodPost, s.url, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	r.Header.Set("Authorization", "me")
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	return response.StatusCode, answer, err
}

// send sends a batch that is answered.
func (s *batchService) send(items ...item) []outcome {
	s.Helper()
	_, answer, err := s.post(s.encode(items))
	s.must(err)
	outcomes, err := s.decode(answer, len(items))
	if err != nil || len(outcomes) != len(items) {
		s.Fatalf("%s: %v", answer, err)
	}
	return outcomes
}

// want checks what failed, in the order of the items; "" is a payment, and "…" any failure.
func (s *batchService) want(what string, got []outcome, failed ...string) []outcome {
	s.Helper()
	for i, want := range failed {
		ok := got[i].failed == want || want == "…" && got[i].failed != ""
		if !ok || (got[i].id == "") == (want == "") {
			s.Errorf("%s: item %d is %+v, want %q", what, i, got[i], want)
		}
	}
	return got
}

func (s *batchService) wantPayments(what string, want int) {
	s.Helper()
	var got int
	s.must(s.store.Update(s.Context(), func(tx *sql.Tx) error {
		return tx.QueryRowContext(s.Context(), `SELECT count(*) FROM payment`).Scan(&got)
	}))
	if got != want {
		s.Errorf("%s: %d payments, want %d", what, got, want)
	}
}

func onEach(t *testing.T, test func(s *batchService)) {
	t.Parallel()
	for _, p := range batchProtocols {
		t.Run(p.dir, func(t *testing.T) {
			t.Parallel()
			test(newBatchService(t, p))
		})
	}
}

// TestPartialSuccess: each item has its own end. In a repetition of the batch those that are done are replayed, and the
// others run; one may be corrected.
func TestPartialSuccess(t *testing.T) {
	onEach(t, func(s *batchService) {
		batch := []item{{"a", "1", 5}, {"b", "closed", 5}, {"c", "2", 0}, {"d", "broken", 5}, {"e", "3", 5}}
		first := s.want("first", s.send(batch...), "", "…", "…", "…", "")
		s.wantPayments("two of five", 2)
		batch[2].amount = 7
		again := s.want("again", s.send(append(batch, item{"f", "4", 5})...), "", "…", "", "…", "", "")
		s.wantPayments("a corrected one, and a new one", 4)
		for _, i := range []int{0, 1, 4} {
			if again[i] != first[i] {
				s.Errorf("item %d was %+v, replayed as %+v", i, first[i], again[i])
			}
		}
	})
}

// TestLostReply: a batch that was done, and whose reply was lost, is replayed as a whole.
func TestLostReply(t *testing.T) {
	onEach(t, func(s *batchService) {
		batch := []item{{"a", "1", 5}, {"b", "2", 5}}
		s.lose.Store(true)
		if _, answer, err := s.post(s.encode(batch)); err == nil {
			s.Fatalf("the reply was not lost: %s", answer)
		}
		s.wantPayments("lost", 2)
		s.want("again", s.send(batch...), "", "")
		s.wantPayments("again", 2)
	})
}

// TestClientLeaves: the item that runs is finished, those behind it are not begun, and the repetition does the rest.
func TestClientLeaves(t *testing.T) {
	onEach(t, func(s *batchService) {
		batch := []item{{"a", "1", 5}, {"b", "2", 5}, {"c", "3", 5}}
		s.leave.Store(true)
		if _, _, err := s.post(s.encode(batch)); err != nil {
			s.Error(err)
		}
		s.wantPayments("left", 1)
		s.want("again", s.send(batch...), "", "", "")
		s.wantPayments("again", 3)
	})
}

// TestKeysOfItems: a key stands for one payment, in one batch as over several.
func TestKeysOfItems(t *testing.T) {
	onEach(t, func(s *batchService) {
		twice := s.want("one key twice", s.send(item{"a", "1", 5}, item{"a", "1", 5}, item{"a", "1", 6}), "", "", "mismatch")
		if twice[0] != twice[1] || twice[2].retryable {
			s.Errorf("one key twice: %+v", twice)
		}
		s.want("no key", s.send(item{"", "1", 5}, item{"b", "1", 5}), "missing-key", "")
		s.want("no good key", s.send(item{"ä", "1", 5}, item{"c", "1", 5}), "invalid-key", "")
		s.wantPayments("in all", 3)
	})
}

// TestDuplicatesInFlight: of batches that come at the same time each item executes once.
func TestDuplicatesInFlight(t *testing.T) {
	onEach(t, func(s *batchService) {
		batch := []item{{"a", "1", 5}, {"b", "2", 5}, {"c", "3", 5}}
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				_, answer, err := s.post(s.encode(batch))
				if err != nil {
					s.Error(err)
					return
				}
				got, err := s.decode(answer, len(batch))
				for _, o := range got {
					if err != nil || o.id == "" && (o.failed != "in-progress" || !o.retryable) {
						s.Errorf("got %+v, %v", o, err)
					}
				}
			})
		}
		wg.Wait()
		s.want("afterwards", s.send(batch...), "", "", "")
		s.wantPayments("in all", 3)
	})
}

// TestRefusedAsAWhole: what is too long, no batch, or from a stranger, executes nothing. The mutations of GraphQL are
// counted as they come.
func TestRefusedAsAWhole(t *testing.T) {
	onEach(t, func(s *batchService) {
		long := make([]item, 101)
		for i := range long {
			long[i] = item{fmt.Sprint("key-", i), "1", 5}
		}
		bodies := []string{"{", s.encode([]item{{strings.Repeat("k", 1<<20), "1", 5}})}
		paid := 0
		if s.dir == "graphql" {
			paid = 100
			s.want("the last", s.send(long...)[paid:], "too-many")
		} else {
			bodies = append(bodies, s.encode(long))
		}
		for _, body := range bodies {
			if _, answer, err := s.post(body); err != nil || bytes.Contains(answer, []byte(`"id":"`)) {
				s.Errorf("got %.200s, %v", answer, err)
			}
		}
		_, answer, err := s.post(s.encode([]item{{"a", "1", 5}}), "Authorization", "")
		if err != nil || !bytes.Contains(answer, []byte(`"unauthenticated"`)) {
			s.Errorf("a stranger got %s, %v", answer, err)
		}
		s.wantPayments("refused", paid)
	})
}

func quote(text string) string {
	quoted, err := json.Marshal(text)
	if err != nil {
		panic(err)
	}
	return string(quoted)
}
