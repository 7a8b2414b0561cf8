// Package gorilla runs the suite of adapters for gorilla/mux, with the recipe of docs/routers.md.
package gorilla

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/gorilla/mux"
	"go.uber.org/goleak"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/watchdog"
	"github.com/onceward/onceward/lab/feature/adapters/suite"
	recipe "github.com/onceward/onceward/lab/feature/routers/gorilla"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(watchdog.Over(m)) }

func TestAdapter(t *testing.T) {
	t.Parallel()
	suite.Run(t, suite.Adapter{
		Name: "gorilla/mux", Operation: "POST /accounts/{account}/payments", Serve: serve, Features: suite.HTTPFeatures,
	})
}

func serve(t *testing.T, guard *onceward.Guard, work suite.Work, options ...onceward.Option) suite.Caller {
	router := mux.NewRouter()
	accounts := router.PathPrefix("/accounts/{account}").Subrouter()
	for _, what := range []string{"/payments", "/refunds"} {
		recipe.Protect(accounts, http.MethodPost, what, handler(work), guard, options...)
	}
	return suite.ServeHTTP(t, router)
}

// handler is the work as a handler of gorilla/mux has it.
func handler(work suite.Work) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var payment suite.Payment
		if err := json.NewDecoder(r.Body).Decode(&payment); err != nil {
			http.Error(w, err.Error(), http.StatusTeapot)
			return
		}
		if mux.Vars(r)["account"] != payment.Account {
			http.Error(w, suite.ErrOtherAccount.Error(), http.StatusTeapot)
			return
		}
		reply := work(r.Context(), payment)
		for name, value := range reply.Header {
			w.Header().Set(name, value)
		}
		if reply.Status == 0 {
			return
		}
		w.WriteHeader(reply.Status)
		_, _ = w.Write([]byte(reply.Body))
	}
}
