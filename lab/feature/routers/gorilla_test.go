package routers_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/gorilla/mux"

	"github.com/onceward/onceward"
	gorilla "github.com/onceward/onceward/lab/feature/routers/gorilla"
	"github.com/onceward/onceward/lab/feature/suite"
)

func TestGorilla(t *testing.T) {
	t.Parallel()
	suite.Run(t, suite.Adapter{
		Name: "gorilla/mux", Operation: "POST /accounts/{account}/payments", Serve: serveGorilla,
		Features: suite.HTTPFeatures,
	})
}

func serveGorilla(t *testing.T, guard *onceward.Guard, work suite.Work, options ...onceward.Option) suite.Caller {
	router := mux.NewRouter()
	accounts := router.PathPrefix("/accounts/{account}").Subrouter()
	for _, what := range []string{"/payments", "/refunds"} {
		gorilla.Protect(accounts, http.MethodPost, what, handlerGorilla(work), guard, options...)
	}
	return suite.ServeHTTP(t, router)
}

// handlerGorilla is the work as a handler of gorilla/mux has it.
func handlerGorilla(work suite.Work) http.HandlerFunc {
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
