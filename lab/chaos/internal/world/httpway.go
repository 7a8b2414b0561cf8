package world

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// httpWay is the way of requests to a service over HTTP. It knows where a request begins and ends, as a wire does not,
// so that one of them can be lost, repeated or held back as a whole.
type httpWay struct {
	world    *World
	listener net.Listener
	server   *http.Server
	// late are the requests that are on their way while nobody waits for them any more.
	late sync.WaitGroup

	mu       sync.Mutex
	troubles []*wayTrouble
}

// wayTrouble is what happens to some of the requests for a while.
type wayTrouble struct {
	name string
	do   func(w *httpWay, request *http.Request) (*http.Response, error)
	// struck is how many requests it has happened to.
	struck int
}

// wayTroubles are what can happen. Each is a request that the client cannot tell from one with another outcome.
var wayTroubles = []wayTrouble{
	{name: "service-reply-lost", do: (*httpWay).loseReply},
	{name: "service-throttles", do: (*httpWay).throttle},
	{name: "service-answers-late", do: (*httpWay).answerLate},
	{name: "service-fails-after", do: (*httpWay).failAfter},
	{name: "service-request-late", do: (*httpWay).deliverLate},
}

// openWay opens a way to the service at a URL.
func openWay(w *World, service string) (*httpWay, error) {
	target, err := url.Parse(service)
	if err != nil {
		return nil, err
	}
	way := &httpWay{world: w}
	if way.listener, err = net.Listen("tcp4", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	silent := log.New(io.Discard, "", 0)
	way.server = &http.Server{ErrorLog: silent, Handler: &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target); r.Out.Host = r.In.Host },
		Transport: way, ErrorLog: silent,
		// A client whose answer is lost sees that its connection has ended.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}}
	go func() { _ = way.server.Serve(way.listener) }() // it ends with close
	return way, nil
}

func (w *httpWay) addr() string { return w.listener.Addr().String() }

func (w *httpWay) close() error {
	err := w.server.Close()
	w.late.Wait()
	return err
}

// suffer lets something happen to half of the requests for a while, and until it has happened to one.
func (w *httpWay) suffer(ctx context.Context, how wayTrouble) error {
	w.mu.Lock()
	w.troubles = append(w.troubles, &how)
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.troubles = slices.DeleteFunc(w.troubles, func(t *wayTrouble) bool { return t == &how })
	}()
	pause(ctx, w.world.between(500*time.Millisecond, 1500*time.Millisecond))
	w.mu.Lock()
	defer w.mu.Unlock()
	if how.struck == 0 {
		return errNotFired
	}
	return nil
}

// current draws what happens to a request; nil for nothing.
func (w *httpWay) current() *wayTrouble {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.troubles) == 0 || !pick(w.world, []bool{true, false}) {
		return nil
	}
	how := pick(w.world, w.troubles)
	how.struck++
	return how
}

// RoundTrip implements [http.RoundTripper].
func (w *httpWay) RoundTrip(request *http.Request) (*http.Response, error) {
	if how := w.current(); how != nil {
		return how.do(w, request)
	}
	return http.DefaultTransport.RoundTrip(request)
}

// errLost is what became of a request, as far as its client can tell.
var errLost = errors.New("the answer is lost")

// loseReply lets the service do what was asked, and loses the answer.
func (w *httpWay) loseReply(request *http.Request) (*http.Response, error) {
	if err := w.done(request); err != nil {
		return nil, err
	}
	return nil, errLost
}

// done lets the service do what was asked, whether the client waits or not.
func (w *httpWay) done(request *http.Request) error {
	response, err := http.DefaultTransport.RoundTrip(request.WithContext(context.WithoutCancel(request.Context())))
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, response.Body)
	return errors.Join(err, response.Body.Close())
}

// throttle refuses a request: it was not done.
func (w *httpWay) throttle(request *http.Request) (*http.Response, error) {
	return refusal(request, http.StatusBadRequest, "ProvisionedThroughputExceededException"), nil
}

// failAfter lets the service do what was asked, and says that it has failed.
func (w *httpWay) failAfter(request *http.Request) (*http.Response, error) {
	if err := w.done(request); err != nil {
		return nil, err
	}
	return refusal(request, http.StatusInternalServerError, "InternalServerError"), nil
}

// refusal is an answer of the service that says no.
func refusal(request *http.Request, status int, kind string) *http.Response {
	body := `{"__type":"com.amazonaws.dynamodb.v20120810#` + kind + `","message":"chaos"}`
	return &http.Response{
		StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, Request: request, ContentLength: int64(len(body)),
		Header: http.Header{"Content-Type": {"application/x-amz-json-1.0"}}, Body: io.NopCloser(strings.NewReader(body)),
	}
}

// answerLate keeps the answer back for a while.
func (w *httpWay) answerLate(request *http.Request) (*http.Response, error) {
	response, err := http.DefaultTransport.RoundTrip(request)
	pause(request.Context(), w.world.between(100*time.Millisecond, 2*time.Second))
	return response, err
}

// deliverLate gives the client up, and delivers its request a while later, when it has long sent others.
func (w *httpWay) deliverLate(request *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return nil, err
	}
	later := request.Clone(context.WithoutCancel(request.Context()))
	w.late.Go(func() {
		time.Sleep(w.world.between(100*time.Millisecond, 3*time.Second))
		later.Body = io.NopCloser(bytes.NewReader(body))
		_ = w.done(later) // nobody waits for it
	})
	return nil, errLost
}
