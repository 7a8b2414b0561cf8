package routers_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/gofiber/fiber/v3/middleware/adaptor"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	viachi "github.com/onceward/onceward/lab/feature/routers/chi"
	viaecho4 "github.com/onceward/onceward/lab/feature/routers/echo4"
	viaecho5 "github.com/onceward/onceward/lab/feature/routers/echo5"
	viafiber "github.com/onceward/onceward/lab/feature/routers/fiber"
	viagin "github.com/onceward/onceward/lab/feature/routers/gin"
	viagorilla "github.com/onceward/onceward/lab/feature/routers/gorilla"
	viahttp "github.com/onceward/onceward/lab/feature/routers/nethttp"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

// recipe is a directory here, and what it serves.
type recipe struct {
	dir           string
	operation     string
	transactional bool
	router        func(s *recipeService) http.Handler
}

// The name of the operation, as routers write their patterns.
const (
	braced = "POST /accounts/{account}/payments"
	colon  = "POST /accounts/:account/payments"
)

var recipes = []recipe{
	{"nethttp", braced, true, func(s *recipeService) http.Handler { return viahttp.NewRouter(s.guard) }},
	{"chi", braced, false, func(s *recipeService) http.Handler { return viachi.NewRouter(s.guard, s.charge) }},
	{"gorilla", braced, true, func(s *recipeService) http.Handler {
		return s.built(viagorilla.NewRouter(s.guard))
	}},
	{"gin", colon, true, func(s *recipeService) http.Handler { return s.built(viagin.NewRouter(s.guard)) }},
	{"echo4", colon, true, func(s *recipeService) http.Handler { return s.built(viaecho4.NewRouter(s.guard)) }},
	{"echo5", colon, false, func(s *recipeService) http.Handler {
		return s.built(viaecho5.NewRouter(s.guard, s.charge))
	}},
	{"fiber", colon, true, func(s *recipeService) http.Handler {
		app, err := viafiber.NewApp(s.guard)
		s.must(err)
		return adaptor.FiberApp(app)
	}},
}

// recipeService is what a recipe runs on: a store with a table of payments, a bank, and what the guard logged and told.
type recipeService struct {
	*testing.T
	store    *sqlite.Store
	guard    *onceward.Guard
	bank     func() error // asked at each charge, if not nil
	charges  atomic.Int64
	log      lockedBuffer
	mu       sync.Mutex
	names    map[string]bool
	bypasses int
	url      string
}

// lockedBuffer is a log that may be written from several requests.
type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}

func newRecipeService(t *testing.T, change ...func(*sqlite.Store) store.Store) *recipeService {
	t.Helper()
	s := &recipeService{T: t, names: make(map[string]bool)}
	var err error
	s.store, err = sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "payments.db"))
	s.must(err)
	t.Cleanup(func() { _ = s.store.Close() })
	s.must(s.store.Update(t.Context(), func(tx *sql.Tx) error {
		_, err := tx.ExecContext(t.Context(), `CREATE TABLE payment (id TEXT PRIMARY KEY, account TEXT, amount BIGINT)`)
		return err
	}))
	var used store.Store = s.store
	for _, f := range change {
		used = f(s.store)
	}
	s.guard, err = onceward.New(used, onceward.Config{
		Scope: onceward.SingleScope("shop"), Secret: []byte("the secret of the tests"), StoreTimeout: await.Limit,
		Logger: slog.New(slog.NewTextHandler(&s.log, nil)), Observer: onceward.ObserverFunc(s.observe),
	})
	s.must(err)
	return s
}

func (s *recipeService) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *recipeService) observe(_ context.Context, e onceward.ObserverEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e := e.(type) {
	case onceward.DecidedEvent:
		s.names[e.Operation] = true
	case onceward.BypassedEvent:
		s.bypasses++
	}
}

// charge is the bank of a reserved recipe.
func (s *recipeService) charge(_ context.Context, key, account string, amount int64) (string, error) {
	if key == "" || account == "" || amount == 0 {
		return "", errors.New("an incomplete order")
	}
	if s.bank != nil {
		if err := s.bank(); err != nil {
			return "", err
		}
	}
	return fmt.Sprint("ch_", s.charges.Add(1)), nil
}

// payments counts what was done: rows of a transactional recipe, charges of a reserved one.
func (s *recipeService) payments() int64 {
	s.Helper()
	var rows int64
	row := s.store.DB().QueryRowContext(s.Context(), `SELECT count(*) FROM payment WHERE account <> '' AND amount <> 0`)
	s.must(row.Scan(&rows))
	return rows + s.charges.Load()
}

func (s *recipeService) wantPayments(what string, want int64) {
	s.Helper()
	if got := s.payments(); got != want {
		s.Errorf("%s: %d payments, want %d", what, got, want)
	}
}

// built is a router whose audit passed.
func (s *recipeService) built(router http.Handler, err error) http.Handler {
	s.Helper()
	s.must(err)
	return router
}

// serve starts the router on loopback.
func (s *recipeService) serve(router http.Handler) {
	server := httptest.NewUnstartedServer(router)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.Start()
	s.Cleanup(server.Close)
	s.url = server.URL
}

// recipeAnswer is what a client got.
type recipeAnswer struct {
	status   int
	replayed bool
	kind     string
	body     string
}

// post sends a payment from an account, under a key if that is not empty.
func (s *recipeService) post(account, key, body string) recipeAnswer {
	s.Helper()
	url := s.url + "/accounts/" + account + "/payments"
	r, err := http.NewRequestWithContext(s.Context(), http.MethodPost, url, strings.NewReader(body))
	s.must(err)
	r.Header.Set("Content-Type", "application/json")
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	response, err := http.DefaultClient.Do(r)
	s.must(err)
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	s.must(err)
	return recipeAnswer{
		response.StatusCode, response.Header.Get("Idempotent-Replayed") == "true",
		response.Header.Get("Content-Type"), string(content),
	}
}

func (s *recipeService) want(what string, got recipeAnswer, status int, replayed bool) recipeAnswer {
	s.Helper()
	if got.status != status || got.replayed != replayed {
		s.Errorf("%s: got %+v, want %d, replayed %t", what, got, status, replayed)
	}
	return got
}

// TestRecipes: one execution, equal bytes on a replay, and one name for one route.
func TestRecipes(t *testing.T) {
	t.Parallel()
	for _, r := range recipes {
		t.Run(r.dir, func(t *testing.T) {
			t.Parallel()
			s := newRecipeService(t)
			s.serve(r.router(s))
			first := s.want("first", s.post("a", "k", `{"amount":7}`), http.StatusCreated, false)
			again := s.want("replay", s.post("a", "k", `{"amount":7}`), http.StatusCreated, true)
			if again.body != first.body || again.kind != first.kind || !strings.Contains(first.body, `"id"`) {
				t.Errorf("replay: got %+v, want the bytes of %+v", again, first)
			}
			s.want("mismatch, body", s.post("a", "k", `{"amount":8}`), http.StatusUnprocessableEntity, false)
			s.want("mismatch, path", s.post("b", "k", `{"amount":7}`), http.StatusUnprocessableEntity, false)
			s.want("no key", s.post("a", "", `{"amount":7}`), http.StatusBadRequest, false)
			s.wantPayments("one key", 1)
			bad := s.want("not valid", s.post("a", "bad", `{`), http.StatusBadRequest, false)
			if !strings.Contains(bad.body, "not a payment") {
				t.Errorf("not valid: got %+v", bad)
			}
			fixed := s.want("corrected", s.post("a", "bad", `{"amount":9}`), http.StatusCreated, false)
			if again = s.want("its replay", s.post("a", "bad", `{"amount":9}`), http.StatusCreated, true); again.body != fixed.body {
				t.Errorf("corrected: got %+v, replayed as %+v", fixed, again)
			}
			s.manyPaths(300)
			s.wantPayments("many paths", 302)
			if len(s.names) != 1 || !s.names[r.operation] {
				t.Errorf("the operations are %v, want %q alone", s.names, r.operation)
			}
			if log := s.log.String(); log != "" || s.bypasses != 0 {
				t.Errorf("a recipe that does it right is told of: %s", log)
			}
		})
	}
}

// manyPaths sends payments from different accounts, some at a time.
func (s *recipeService) manyPaths(n int) {
	var wg sync.WaitGroup
	next := make(chan int)
	for range 16 {
		wg.Go(func() {
			for i := range next {
				got := s.post(fmt.Sprint("account-", i), fmt.Sprint("key-", i), `{"amount":7}`)
				s.want("path", got, http.StatusCreated, false)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}

// TestNamesUnderChi: Group runs behind the router's decision, and sees the whole pattern; Use in a Route does not.
func TestNamesUnderChi(t *testing.T) {
	t.Parallel()
	s := newRecipeService(t)
	protect := s.guard.Middleware(onceward.Reserved(onceward.FailureUnknown))
	created := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }
	router := chi.NewRouter()
	router.Route("/accounts", func(r chi.Router) {
		r.Group(func(r chi.Router) {
			r.Use(protect)
			r.Post("/{account}/payments", created)
		})
		r.Route("/{account}/bookings", func(r chi.Router) {
			r.Use(protect)
			r.Post("/{booking}/payments", created)
		})
	})
	s.serve(router)
	s.want("Group", s.post("a", "k", `{}`), http.StatusCreated, false)
	s.want("Route", s.post("a/bookings/b", "l", `{}`), http.StatusCreated, false)
	if len(s.names) != 2 || !s.names[braced] || !s.names["POST /accounts/{account}/bookings/*"] {
		t.Errorf("the operations are %v", s.names)
	}
}

// undoing is a store that undoes the first run of each transaction, as a database does whose neighbours were faster.
type undoing struct{ *sqlite.Store }

func (u undoing) Transact(
	ctx context.Context, r *store.Reservation, work func(context.Context, store.Verdict) store.Settlement,
) (store.Verdict, error) {
	verdict, err := u.Store.Transact(ctx, r, func(ctx context.Context, v store.Verdict) store.Settlement {
		work(ctx, v)
		return store.Settlement{Action: store.TxRollback}
	})
	if err != nil || verdict.Decision != store.DecisionExecute {
		return verdict, err
	}
	return u.Store.Transact(ctx, r, work)
}

// TestRecipesRunAgain: a transaction that the database undid is repeated whole, and leaves one answer.
func TestRecipesRunAgain(t *testing.T) {
	t.Parallel()
	for _, r := range recipes {
		if !r.transactional {
			continue
		}
		t.Run(r.dir, func(t *testing.T) {
			t.Parallel()
			s := newRecipeService(t, func(s *sqlite.Store) store.Store { return undoing{s} })
			s.serve(r.router(s))
			first := s.want("first", s.post("a", "k", `{"amount":7}`), http.StatusCreated, false)
			again := s.want("replay", s.post("a", "k", `{"amount":7}`), http.StatusCreated, true)
			if again.body != first.body {
				t.Errorf("replay: got %+v, want the bytes of %+v", again, first)
			}
			s.wantPayments("undone and repeated", 1)
		})
	}
}
