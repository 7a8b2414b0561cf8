package outboxcrash

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/onceward/onceward/internal/servers"
)

// hookSecret signs what is sent by HTTP.
var hookSecret = "whsec_" + base64.StdEncoding.EncodeToString([]byte("a secret of thirty-two bytes ...."))

// receiver takes events by HTTP and applies them through the inbox. It can be restarted at the same address.
type receiver struct {
	world   *world
	address string
	// refuses says that an event is answered with 500; nil refuses none.
	refuses func(payload []byte) bool
	// withholds makes the next event that is applied one whose sender waits for the reply until it is cut off.
	withholds atomic.Bool
	// duplicates counts events that came again.
	duplicates atomic.Int64

	mu     sync.Mutex
	server *http.Server
}

func (w *world) receives(refuses func(payload []byte) bool) *receiver {
	w.Helper()
	r := &receiver{world: w, address: fmt.Sprint("127.0.0.1:", servers.FreePort(w)), refuses: refuses}
	must(w, r.start())
	w.Cleanup(func() { _ = r.stop() })
	return r
}

func (r *receiver) url() string { return "http://" + r.address + "/events" }

func (r *receiver) start() error {
	listener, err := net.Listen("tcp4", r.address)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.server = &http.Server{Handler: r}
	go func(s *http.Server) { _ = s.Serve(listener) }(r.server)
	return nil
}

// stop cuts all connections, also those on which an event is being received.
func (r *receiver) stop() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.server.Close()
}

func (r *receiver) restart() error { return errors.Join(r.stop(), r.start()) }

// ServeHTTP implements [http.Handler].
func (r *receiver) ServeHTTP(rw http.ResponseWriter, req *http.Request) {
	payload, err := io.ReadAll(req.Body)
	if err != nil {
		return // it was cut off
	}
	if r.refuses != nil && r.refuses(payload) {
		http.Error(rw, "not this one", http.StatusInternalServerError)
		return
	}
	applied, err := r.world.inbox.Handle(context.WithoutCancel(req.Context()), "http", req.Header.Get("ce-id"), func(ctx context.Context) error {
		return apply(ctx, payload)
	})
	if err != nil {
		http.Error(rw, err.Error(), http.StatusServiceUnavailable)
		return
	}
	if !applied {
		r.duplicates.Add(1)
	} else if r.withholds.CompareAndSwap(true, false) {
		<-req.Context().Done()
	}
	rw.WriteHeader(http.StatusNoContent)
}
