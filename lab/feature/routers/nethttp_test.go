package routers_test

import (
	"context"
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
		Name: "net/http", Operation: "POST /accounts/{account}/payments", Serve: serveNetHTTP, State: stateNetHTTP,
		Hooks: hooksNetHTTP, Deadline: deadlineNetHTTP, Features: suite.HTTPFeatures,
	})
}

func serveNetHTTP(t *testing.T, guard *onceward.Guard, work suite.Work, options ...onceward.Option) suite.Caller {
	router := onceward.NewMux()
	for _, what := range []string{"payments", "refunds"} {
		router.Handle("POST /accounts/{account}/"+what, guard.HandlerFunc(handlerNetHTTP(work), options...))
	}
	return suite.ServeHTTP(t, router)
}

// deadlineNetHTTP serves behind a middleware that sets a deadline.
func deadlineNetHTTP(t *testing.T, guard *onceward.Guard, work suite.Work, options ...onceward.Option) suite.Caller {
	protected := guard.Handler(handlerNetHTTP(work), options...)
	router := http.NewServeMux()
	router.HandleFunc("POST /accounts/{account}/payments", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), suite.FrontDeadline)
		defer cancel()
		protected.ServeHTTP(w, r.WithContext(ctx))
	})
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

// hooked calls a hook when the answer begins, which sets a field of the answer.
type hooked struct {
	http.ResponseWriter
	header func() http.Header
}

func (w *hooked) WriteHeader(status int) {
	w.header().Set(suite.HookHeader, "before")
	w.ResponseWriter.WriteHeader(status)
}

func (w *hooked) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// hooksNetHTTP serves behind a writer with a hook, which sets its field in the header of the handler's writer too.
func hooksNetHTTP(t *testing.T, guard *onceward.Guard, options ...onceward.Option) suite.Caller {
	type inner struct{ http.ResponseWriter }
	var handler http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var payment suite.Payment
		if err := json.NewDecoder(r.Body).Decode(&payment); err != nil {
			http.Error(w, err.Error(), http.StatusTeapot)
			return
		}
		r.Context().Value(inner{}).(*inner).ResponseWriter = w
		suite.WriteAs(payment.Memo, w)
	})
	if guard != nil {
		handler = guard.Handler(handler, options...)
	}
	router := http.NewServeMux()
	router.HandleFunc("POST /accounts/{account}/payments", func(w http.ResponseWriter, r *http.Request) {
		its := &inner{w}
		header := func() http.Header {
			its.Header().Get(suite.HookHeader)
			return w.Header()
		}
		handler.ServeHTTP(&hooked{w, header}, r.WithContext(context.WithValue(r.Context(), inner{}, its)))
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
