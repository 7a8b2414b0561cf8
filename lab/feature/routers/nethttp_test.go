package routers_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/lab/feature/suite"
)

func TestNetHTTP(t *testing.T) {
	t.Parallel()
	suite.Run(t, suite.Adapter{
		Name: "net/http", Operation: "POST /accounts/{account}/payments", Serve: serveNetHTTP, State: stateNetHTTP, Features: suite.HTTPFeatures,
	})
}

func serveNetHTTP(t *testing.T, guard *onceward.Guard, work suite.Work, options ...onceward.Option) suite.Caller {
	router := onceward.NewMux()
	for _, what := range []string{"payments", "refunds"} {
		router.Handle("POST /accounts/{account}/"+what, guard.HandlerFunc(handlerNetHTTP(work), options...))
	}
	return suite.ServeHTTP(t, router)
}

// stateNetHTTP serves a handler that replies with what net/http says, and then changes it.
func stateNetHTTP(t *testing.T, guard *onceward.Guard, options ...onceward.Option) suite.Caller {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, err := io.ReadAll(r.Body)
		facts := fmt.Sprintf("header %v, route %s, account %s, path %s, type %s, length %d, body %s, error %v", w.Header(),
			r.Pattern, r.PathValue("account"), r.URL, r.Header.Get("Content-Type"), r.ContentLength, content, err)
		r.SetPathValue("account", r.PathValue("account")+"!")
		r.Pattern, r.Method = "another", "another"
		w.Header().Set("X-Facts", "known")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, facts)
	})
	var protected http.Handler = handler
	if guard != nil {
		protected = guard.Handler(handler, options...)
	}
	router := http.NewServeMux()
	router.HandleFunc("POST /accounts/{account}/payments", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Served-By", "a middleware")
		protected.ServeHTTP(w, r)
	})
	return suite.ServeHTTP(t, router)
}

// handlerNetHTTP is the work as net/http has it.
func handlerNetHTTP(work suite.Work) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var payment suite.Payment
		if err := json.NewDecoder(r.Body).Decode(&payment); err != nil {
			http.Error(w, err.Error(), http.StatusTeapot)
			return
		}
		if r.PathValue("account") != payment.Account {
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
