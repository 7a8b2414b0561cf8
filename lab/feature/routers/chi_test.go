package routers_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/lab/feature/suite"
)

func TestChi(t *testing.T) {
	t.Parallel()
	suite.Run(t, suite.Adapter{
		Name: "chi", Operation: "POST /accounts/{account}/payments", Serve: serveChi, Features: suite.HTTPFeatures,
	})
}

func serveChi(t *testing.T, guard *onceward.Guard, work suite.Work, options ...onceward.Option) suite.Caller {
	router := chi.NewRouter()
	router.Use(quietly, middleware.Recoverer)
	router.Route("/accounts/{account}", func(r chi.Router) {
		r.With(guard.Middleware(options...)).Post("/payments", handlerChi(work))
		r.Group(func(r chi.Router) {
			r.Use(guard.Middleware(options...))
			r.Post("/refunds", handlerChi(work))
		})
	})
	return suite.ServeHTTP(t, router)
}

// quietly keeps the recoverer from printing the stacks of panics that are meant.
func quietly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, middleware.WithLogEntry(r, chiSilent{}))
	})
}

type chiSilent struct{ middleware.LogEntry }

// Panic implements [middleware.LogEntry].
func (chiSilent) Panic(any, []byte) {}

// handlerChi is the work as a handler of chi has it.
func handlerChi(work suite.Work) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var payment suite.Payment
		if err := json.NewDecoder(r.Body).Decode(&payment); err != nil {
			http.Error(w, err.Error(), http.StatusTeapot)
			return
		}
		if chi.URLParam(r, "account") != payment.Account {
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
