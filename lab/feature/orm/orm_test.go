// Package orm tests the recipes of docs/orm.md: each is a file here, the page shows the same text, and each makes
// payments in the transaction of the guard, on SQLite, PostgreSQL and MariaDB.
package orm

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/internal/watchdog"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/mysql"
	"github.com/onceward/onceward/store/postgres"
	"github.com/onceward/onceward/store/sqlite"
)

func TestMain(m *testing.M) { os.Exit(servers.Main(watchdog.Over(m))) }

// service has payments in a database, and the recipe's way to it.
type service struct {
	*testing.T
	orm
	guard *onceward.Guard
	db    *sql.DB // to look from outside
}

const createTable = `CREATE TABLE payment (id VARCHAR(64) PRIMARY KEY, amount BIGINT NOT NULL CHECK (amount > 0))`

// onEach runs a test for every recipe, on each database that it is for.
func onEach(t *testing.T, test func(s *service)) {
	t.Parallel()
	nightly.Only(t, "it is a matrix of ORMs and databases; lab/doctest compiles what docs/orm.md shows")
	for _, r := range recipes {
		if r.sqlite != nil {
			t.Run(r.dir+"/SQLite", func(t *testing.T) {
				t.Parallel()
				file := filepath.Join(t.TempDir(), "payments.db")
				s, err := sqlite.Open(t.Context(), file)
				test(newService(t, r.sqlite(), s, err, "sqlite3", "file:"+filepath.ToSlash(file)))
			})
		}
		t.Run(r.dir+"/PostgreSQL", func(t *testing.T) {
			t.Parallel()
			url := servers.Postgres(t).SchemaURL(t)
			s, err := postgres.Open(t.Context(), url)
			test(newService(t, r.postgres(), s, err, "pgx", url))
		})
		if r.mysql != nil {
			t.Run(r.dir+"/MariaDB", func(t *testing.T) {
				t.Parallel()
				server := servers.MariaDB(t)
				source := server.DSN(server.Database(t))
				s, err := mysql.Open(t.Context(), source)
				test(newService(t, r.mysql(), s, err, "mysql", source))
			})
		}
	}
}

func newService(
	t *testing.T, made orm, used interface {
		store.Store
		io.Closer
	}, err error, driver, source string,
) *service {
	t.Helper()
	s := &service{T: t, orm: made}
	s.must(err)
	t.Cleanup(func() { _ = used.Close() })
	s.db, err = sql.Open(driver, source)
	s.must(err)
	t.Cleanup(func() { _ = s.db.Close() })
	_, err = s.db.ExecContext(t.Context(), createTable)
	s.must(err)
	s.guard, err = onceward.New(used, onceward.Config{
		Scope:  onceward.SingleScope("shop"),
		Secret: []byte("the secret of the tests"), StoreTimeout: await.Limit, Logger: slog.New(slog.DiscardHandler),
	})
	s.must(err)
	return s
}

func (s *service) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// serve starts a handler inside of the guard, on loopback.
func (s *service) serve(h http.Handler) (url string) {
	protected := s.guard.Handler(h, onceward.Transactional(), onceward.OperationName("pay"))
	server := httptest.NewServer(protected)
	s.Cleanup(server.Close)
	return server.URL
}

// answer is what a client got.
type answer struct {
	status   int
	replayed bool
	body     string
}

func (s *service) post(url, key, body string) answer {
	s.Helper()
	r, err := http.NewRequestWithContext(s.Context(), http.MethodPost, url, strings.NewReader(body))
	s.must(err)
	r.Header.Set("Idempotency-Key", key)
	response, err := http.DefaultClient.Do(r)
	s.must(err)
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	s.must(err)
	return answer{response.StatusCode, response.Header.Get("Idempotent-Replayed") == "true", string(content)}
}

func (s *service) want(what string, got answer, status int, replayed bool) answer {
	s.Helper()
	if got.status != status || got.replayed != replayed {
		s.Errorf("%s: got %+v, want %d, replayed %t", what, got, status, replayed)
	}
	return got
}

func (s *service) wantPayments(what string, want int) {
	s.Helper()
	var got int
	s.must(s.db.QueryRowContext(s.Context(), `SELECT count(*) FROM payment`).Scan(&got))
	if got != want {
		s.Errorf("%s: %d payments, want %d", what, got, want)
	}
}

// TestPayments: what is written and the answer commit together, a retry writes nothing, a failure leaves nothing, and a
// transaction of the ORM's own undoes itself alone.
func TestPayments(t *testing.T) {
	onEach(t, func(s *service) {
		url := s.serve(s.pay)
		first := s.want("first", s.post(url, "k", `{"amount":7,"tip":1}`), http.StatusCreated, false)
		again := s.want("replay", s.post(url, "k", `{"amount":7,"tip":1}`), http.StatusCreated, true)
		if again.body != first.body || !strings.Contains(first.body, `"tipped":true`) {
			s.Errorf("got %+v, replayed as %+v", first, again)
		}
		s.wantPayments("a payment and its tip", 2)
		untipped := s.want("no tip", s.post(url, "untipped", `{"amount":7}`), http.StatusCreated, false)
		if !strings.Contains(untipped.body, `"tipped":false`) {
			s.Errorf("no tip: got %+v", untipped)
		}
		s.wantPayments("a payment without its tip", 3)
		s.want("failed", s.post(url, "failed", `{"tip":1}`), http.StatusInternalServerError, false)
		s.want("failed again", s.post(url, "failed", `{"tip":1}`), http.StatusInternalServerError, false)
		s.want("not valid", s.post(url, "bad", `{`), http.StatusBadRequest, false)
		s.wantPayments("a failed one", 3)
		s.want("corrected", s.post(url, "bad", `{"amount":9}`), http.StatusCreated, false)
		s.wantPayments("a corrected one", 4)
	})
}

// TestDuplicatesInFlight: of requests that come at the same time one executes.
func TestDuplicatesInFlight(t *testing.T) {
	onEach(t, func(s *service) {
		url := s.serve(s.pay)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if got := s.post(url, "k", `{"amount":7}`); got.status != http.StatusCreated && got.status != http.StatusConflict {
					s.Errorf("got %+v", got)
				}
			})
		}
		wg.Wait()
		s.wantPayments("one key", 1)
	})
}

// TestAnswersThatUndo: a 4xx is stored and a 500 is not, and neither leaves what was written before it.
func TestAnswersThatUndo(t *testing.T) {
	onEach(t, func(s *service) {
		for _, test := range []struct {
			status   int
			replayed bool
		}{{http.StatusPaymentRequired, true}, {http.StatusInternalServerError, false}} {
			url := s.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if err := s.write(r.Context(), "undone"); err != nil {
					s.Error(err)
				}
				w.WriteHeader(test.status)
			}))
			key := strconv.Itoa(test.status)
			s.want("first", s.post(url, key, ``), test.status, false)
			s.want("again", s.post(url, key, ``), test.status, test.replayed)
			s.wantPayments(key, 0)
		}
	})
}

// TestEndsAreTheGuards: the ORM cannot commit, what it wrote before it tried counts, and after the handler it can write
// nothing more.
func TestEndsAreTheGuards(t *testing.T) {
	onEach(t, func(s *service) {
		var left context.Context
		url := s.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			left = r.Context()
			if err := s.write(left, "before"); err != nil {
				s.Error(err)
			}
			err := s.end(left)
			if !errors.Is(err, onceward.ErrTxOwned) && (err == nil || !strings.Contains(err.Error(), s.refusal)) {
				s.Errorf("an end of the ORM's own: %v", err)
			}
			w.WriteHeader(http.StatusCreated)
		}))
		s.want("first", s.post(url, "k", ``), http.StatusCreated, false)
		s.wantPayments("after the handler", 1)
		if err := s.write(left, "late"); err == nil {
			s.Error("it can write after the handler")
		}
		s.wantPayments("later", 1)
		s.want("replay", s.post(url, "k", ``), http.StatusCreated, true)
	})
}

// TestRawEnds: a statement that ends the transaction past the ORM is refused on SQLite and MySQL, and makes the
// outcome unknown on PostgreSQL, where nothing runs a second time.
func TestRawEnds(t *testing.T) {
	onEach(t, func(s *service) {
		for i, statement := range []string{"COMMIT", "/* really */ END", "ROLLBACK", "COMMIT; BEGIN", "COMMIT AND CHAIN"} {
			var runs int
			var refused error
			url := s.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				runs++
				if err := s.write(r.Context(), statement); err != nil {
					s.Error(err)
				}
				refused = s.raw(r.Context(), statement)
				w.WriteHeader(http.StatusCreated)
			}))
			key := "key-" + strconv.Itoa(i)
			first, again := s.post(url, key, ``), s.post(url, key, ``)
			switch {
			case refused != nil:
				s.want(statement, first, http.StatusCreated, false)
				s.want(statement+" again", again, http.StatusCreated, true)
			case first.status != http.StatusInternalServerError || !strings.Contains(again.body, "outcome-unknown"):
				s.Errorf("%s: got %+v, and then %+v", statement, first, again)
			}
			if taken := strings.HasSuffix(s.Name(), "/PostgreSQL"); runs != 1 || (refused == nil) != taken {
				s.Errorf("%s: ran %d times, refused by %v", statement, runs, refused)
			}
		}
	})
}
