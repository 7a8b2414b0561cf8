package callers_test

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/client"
	"github.com/onceward/onceward/internal/await"
)

// service is a server that counts what it is sent.
type service struct {
	*httptest.Server
	mu   sync.Mutex
	seen []http.Header
}

// newService starts a server. The first requests are answered by the handlers, and all others with 201.
func newService(t *testing.T, handlers ...http.HandlerFunc) *service {
	s := &service{}
	s.Server = httptest.NewServer(s.handler(handlers))
	t.Cleanup(s.Close)
	return s
}

// inProcess returns a service without a network and the transport to it, for tests in the time of synctest.
func inProcess(t *testing.T, handlers ...http.HandlerFunc) (*service, *client.Transport) {
	s := &service{Server: &httptest.Server{URL: "http://pay.test"}}
	h := s.handler(handlers)
	return s, transport(t, time.Hour, roundTripper(func(r *http.Request) (*http.Response, error) {
		w := httptest.NewRecorder()
		if r.Body == nil {
			r.Body = http.NoBody
		}
		h.ServeHTTP(w, r)
		return w.Result(), r.Context().Err()
	}))
}

type roundTripper func(r *http.Request) (*http.Response, error)

// RoundTrip implements [http.RoundTripper].
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (s *service) handler(handlers []http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		n := len(s.seen)
		s.seen = append(s.seen, r.Header.Clone())
		s.mu.Unlock()
		if n < len(handlers) {
			handlers[n](w, r)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		w.Header().Set("Location", "/1")
		w.Header().Set("Set-Cookie", "session=1")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(append([]byte("made of "), body...))
	}
}

// sent are the values that a header had in all requests.
func (s *service) sent(name string) (values []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, header := range s.seen {
		values = append(values, header.Get(name))
	}
	return values
}

// wantOneKey: all requests had the same key, and the same time of the first sending.
func (s *service) wantOneKey(t *testing.T, requests int) {
	t.Helper()
	for _, name := range []string{"Idempotency-Key", "Idempotency-First-Sent"} {
		values := s.sent(name)
		if len(values) != requests || len(slices.Compact(values)) != 1 || values[0] == "" {
			t.Errorf("%d requests were to have one %s: %q", requests, name, values)
		}
	}
}

func fails(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }

// newWorker makes a worker that is quick. Each sending is one attempt.
func newWorker(t *testing.T, j client.Journal, config client.WorkerConfig) *client.Worker {
	t.Helper()
	if config.Transport == nil {
		config.Transport = transport(t, time.Hour, &http.Transport{DisableKeepAlives: true})
	}
	config.Logger = quiet
	config.MinBackoff = max(config.MinBackoff, time.Millisecond)
	config.Poll = 10 * time.Millisecond
	if config.SendTimeout == 0 {
		config.SendTimeout = await.Limit
	}
	w, err := client.NewWorker(j, config)
	must(t, err)
	return w
}

func transport(t *testing.T, window time.Duration, base http.RoundTripper) *client.Transport {
	t.Helper()
	profile := client.ProfileIETF()
	profile.Window = window
	made, err := client.New(client.Config{
		Base: base, MaxAttempts: 1, Profile: profile,
	})
	must(t, err)
	return made
}

// runs runs a worker until the test ends.
func runs(t *testing.T, w *client.Worker) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := w.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
}

func wants(t *testing.T, o client.Operation, state client.State, told bool) {
	t.Helper()
	if o.State != state || o.Told != told {
		t.Errorf("the operation is %s, told %t (%s); want %s, told %t", o.State, o.Told, o.LastError, state, told)
	}
}

func (j journal) get(t testing.TB, key string) client.Operation {
	t.Helper()
	o, err := j.Get(t.Context(), key)
	must(t, err)
	return o
}

// TestWorkerFinishes: an operation is sent until it is answered, with credentials that are not in the journal.
func TestWorkerFinishes(t *testing.T) {
	t.Parallel()
	onJournals(t, func(t *testing.T, j journal) {
		s := newService(t, fails, fails)
		key := j.enqueue(t, request(t, "", s.URL, "it"))[0]
		w := newWorker(t, j, client.WorkerConfig{Prepare: func(r *http.Request) error {
			r.Header.Set("Authorization", "Bearer secret")
			return nil
		}})
		runs(t, w)
		o, err := w.Wait(t.Context(), key)
		must(t, err)
		if o.State != client.StateAnswered || o.Answer.Status != http.StatusCreated || string(o.Answer.Body) != "made of it" ||
			o.Answer.Header.Get("Location") != "/1" || o.Answer.Header.Get("Set-Cookie") != "" || o.Attempts != 3 || !o.Told {
			t.Errorf("the answer is %+v", o)
		}
		s.wantOneKey(t, 3)
		if got := s.sent("Authorization"); got[2] != "Bearer secret" || o.Header.Get("Authorization") != "" {
			t.Errorf("credentials: %q were sent, and %q are kept", got, o.Header)
		}
	})
}

// broken is a journal that fails.
type broken struct {
	client.Journal
	// claims and settlements are told of each call, and may refuse it.
	claims      func() error
	settlements func(s client.Settlement) error
}

func (b *broken) Claim(ctx context.Context, host string, limit int, lease time.Duration) ([]client.Claimed, error) {
	if b.claims != nil {
		if err := b.claims(); err != nil {
			return nil, err
		}
	}
	return b.Journal.Claim(ctx, host, limit, lease)
}

func (b *broken) Settle(ctx context.Context, l client.Lease, s client.Settlement) error {
	if b.settlements != nil {
		if err := b.settlements(s); err != nil {
			return err
		}
	}
	return b.Journal.Settle(ctx, l, s)
}

var errDisk = errors.New("the disk is full")

// TestAnswerThatCannotBeKept: the worker dies, in effect, between the answer and its being written down. The next one
// sends it again, under the same key.
func TestAnswerThatCannotBeKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, answerThatCannotBeKept)
}

func answerThatCannotBeKept(t *testing.T) {
	j := openFile(t)
	s, way := inProcess(t)
	key := j.enqueue(t, request(t, "", s.URL, ""))[0]
	full := &broken{Journal: j, settlements: func(client.Settlement) error { return errDisk }}
	report, err := newWorker(t, full, client.WorkerConfig{Transport: way, SendTimeout: time.Second}).RunOnce(t.Context())
	must(t, err)
	if report != (client.Report{Failed: 1}) {
		t.Errorf("the report is %+v", report)
	}
	wants(t, j.get(t, key), client.StatePending, false)
	w := newWorker(t, j, client.WorkerConfig{Transport: way})
	runs(t, w)
	o, err := w.Wait(t.Context(), key)
	must(t, err)
	wants(t, o, client.StateAnswered, true)
	sent := s.sent("Idempotency-Key")
	s.wantOneKey(t, len(sent))
	if len(sent) < 2 {
		t.Errorf("it was sent %d times", len(sent))
	}
}

// TestJournalComesBack: a journal that fails for a while is asked again.
func TestJournalComesBack(t *testing.T) {
	t.Parallel()
	j := openFile(t)
	s := newService(t)
	var failures atomic.Int64
	fail := func() error {
		if failures.Add(1)%3 != 0 {
			return errDisk
		}
		return nil
	}
	key := j.enqueue(t, request(t, "", s.URL, ""))[0]
	w := newWorker(t, &broken{Journal: j, claims: fail, settlements: func(client.Settlement) error { return fail() }},
		client.WorkerConfig{})
	runs(t, w)
	o, err := w.Wait(t.Context(), key)
	must(t, err)
	wants(t, o, client.StateAnswered, true)
	s.wantOneKey(t, 1)
}

// TestPausedWorkerIsFenced: a worker sleeps between the answer and its being written down, for longer than its lease.
func TestPausedWorkerIsFenced(t *testing.T) {
	t.Parallel()
	onJournals(t, func(t *testing.T, j journal) {
		s := newService(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "of the first") })
		key := j.enqueue(t, request(t, "", s.URL, ""))[0]
		asleep, awake := make(chan struct{}), make(chan struct{})
		sleepy := &broken{Journal: j, settlements: func(client.Settlement) error {
			close(asleep)
			<-awake
			return nil
		}}
		first := newWorker(t, sleepy, client.WorkerConfig{})
		done := make(chan client.Report)
		go func() {
			report, err := first.RunOnce(t.Context())
			if err != nil {
				t.Error(err)
			}
			done <- report
		}()
		<-asleep
		j.exec(t, `UPDATE onceward_journal SET due = 0`) // its lease is over
		_, err := newWorker(t, j, client.WorkerConfig{}).RunOnce(t.Context())
		must(t, err)
		close(awake)
		if report := <-done; report.Fenced != 1 || report.Answered != 0 {
			t.Errorf("who slept reports %+v", report)
		}
		o := j.get(t, key)
		wants(t, o, client.StateAnswered, true)
		if o.Answer.Status != http.StatusCreated {
			t.Errorf("the answer is that of the worker which slept: %+v", o.Answer)
		}
		s.wantOneKey(t, 2)
	})
}

// TestToldAtLeastOnce: what could not be told, or was not because the worker died, is told again, and not sent again.
func TestToldAtLeastOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, toldAtLeastOnce)
}

func toldAtLeastOnce(t *testing.T) {
	j := openFile(t)
	s, way := inProcess(t)
	key := j.enqueue(t, request(t, "", s.URL, "it"))[0]
	var told atomic.Int64
	onSettled := func(_ context.Context, o client.Operation) error {
		if o.Key != key || string(o.Answer.Body) != "made of it" || o.State != client.StateAnswered {
			t.Errorf("told of %+v", o)
		}
		switch told.Add(1) {
		case 1:
			return errors.New("not now")
		case 2:
			panic("no")
		}
		return nil
	}
	// This one dies as soon as the answer is written down.
	ctx, die := context.WithCancel(t.Context())
	dying := &broken{Journal: j, settlements: func(s client.Settlement) error {
		if s.State == client.StateAnswered && ctx.Err() == nil {
			die()
			return nil
		}
		return errDisk
	}}
	_, _ = newWorker(t, dying, client.WorkerConfig{
		Transport: way, SendTimeout: time.Second,
		OnSettled: func(ctx context.Context, _ client.Operation) error { return ctx.Err() },
	}).RunOnce(ctx)
	wants(t, j.get(t, key), client.StateAnswered, false)
	runs(t, newWorker(t, j, client.WorkerConfig{Transport: way, OnSettled: onSettled}))
	await.That(t, "it is told", func() bool { return j.get(t, key).Told })
	if told.Load() != 3 {
		t.Errorf("it was told %d times", told.Load())
	}
	s.wantOneKey(t, 1)
}

// TestToldOnceAtATime: while one is told of an operation, it is not taken up by another.
func TestToldOnceAtATime(t *testing.T) {
	t.Parallel()
	j := openFile(t)
	s := newService(t)
	j.enqueue(t, request(t, "", s.URL, ""))
	telling, goOn := make(chan struct{}), make(chan struct{})
	var times atomic.Int64
	config := client.WorkerConfig{OnSettled: func(context.Context, client.Operation) error {
		if times.Add(1) == 1 {
			close(telling)
			<-goOn
		}
		return nil
	}}
	var first sync.WaitGroup
	first.Go(func() { _, _ = newWorker(t, j, config).RunOnce(t.Context()) })
	<-telling
	report, err := newWorker(t, j, config).RunOnce(t.Context())
	must(t, err)
	close(goOn)
	first.Wait()
	if report != (client.Report{}) || times.Load() != 1 {
		t.Errorf("it was told %d times, and the second worker reports %+v", times.Load(), report)
	}
}

// TestWindowIsOver: nothing is sent that the server may have forgotten.
func TestWindowIsOver(t *testing.T) {
	t.Parallel()
	onJournals(t, func(t *testing.T, j journal) {
		s := newService(t, fails)
		key := j.enqueue(t, request(t, "", s.URL, ""))[0]
		var told atomic.Int64
		w := newWorker(t, j, client.WorkerConfig{MinBackoff: time.Hour, OnSettled: func(_ context.Context, o client.Operation) error {
			if o.State == client.StateUnknown {
				told.Add(1)
			}
			return nil
		}})
		_, err := w.RunOnce(t.Context())
		must(t, err)
		wants(t, j.get(t, key), client.StatePending, false)
		j.exec(t, `UPDATE onceward_journal SET due = 0, first_sent = first_sent - 3600000000`) // all were down for an hour
		report, err := w.RunOnce(t.Context())
		must(t, err)
		o := j.get(t, key)
		wants(t, o, client.StateUnknown, true)
		if report.Unknown != 1 || told.Load() != 1 || !strings.Contains(o.LastError, "503") {
			t.Errorf("the report is %+v, and it was told %d times: %s", report, told.Load(), o.LastError)
		}
		s.wantOneKey(t, 1)
	})
}

// TestRefusal: what is refused at once is answered. After a sending that may have been executed, a refusal that the
// service does not keep says nothing about that one.
func TestRefusal(t *testing.T) {
	t.Parallel()
	j := openFile(t)
	refuses := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnprocessableEntity) }
	cutOff := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	atOnce, later := newService(t, refuses), newService(t, cutOff, refuses)
	keys := j.enqueue(t, request(t, "", atOnce.URL, ""), request(t, "", later.URL, ""))
	w := newWorker(t, j, client.WorkerConfig{})
	runs(t, w)
	for i, want := range []int{http.StatusUnprocessableEntity, http.StatusCreated} {
		o, err := w.Wait(t.Context(), keys[i])
		must(t, err)
		wants(t, o, client.StateAnswered, true)
		if o.Answer.Status != want {
			t.Errorf("the answer is %d, want %d", o.Answer.Status, want)
		}
	}
	atOnce.wantOneKey(t, 1)
	later.wantOneKey(t, 3)
}

// TestAnOperationThatCannotBeSent does not keep those beside it from being sent, whatever its row holds.
func TestAnOperationThatCannotBeSent(t *testing.T) {
	t.Parallel()
	onJournals(t, func(t *testing.T, j journal) {
		s := newService(t)
		bad, err := client.NewOperation(request(t, "a-bad", s.URL, `{}`))
		must(t, err)
		bad.Header.Set("X-Customer", "Ann\x00")
		must(t, j.update(t.Context(), func(tx *sql.Tx) error { return j.Add(t.Context(), tx, bad) }))
		j.enqueue(t, request(t, "b-good", s.URL, `{}`))
		_, err = newWorker(t, j, client.WorkerConfig{MinBackoff: time.Minute}).RunOnce(t.Context())
		must(t, err)
		wants(t, j.get(t, "b-good"), client.StateAnswered, true)
		wants(t, j.get(t, "a-bad"), client.StatePending, false)
	})
}

// TestHangingHost delays its own operations alone.
func TestHangingHost(t *testing.T) {
	t.Parallel()
	j := openFile(t)
	release := make(chan struct{})
	hangs := func(http.ResponseWriter, *http.Request) { <-release }
	hanging, well := newService(t, hangs, hangs), newService(t)
	t.Cleanup(func() { close(release) })
	var keys []string
	for range 10 {
		keys = append(keys, j.enqueue(t, request(t, "", hanging.URL, ""), request(t, "", well.URL, ""))[1])
	}
	w := newWorker(t, j, client.WorkerConfig{MaxSending: 4, MaxPerHost: 2})
	runs(t, w)
	await.That(t, "as many requests hang as may", func() bool { return len(hanging.sent("Idempotency-Key")) == 2 })
	for _, key := range keys {
		o, err := w.Wait(t.Context(), key)
		must(t, err)
		wants(t, o, client.StateAnswered, true)
	}
	if sent := len(hanging.sent("Idempotency-Key")); sent != 2 {
		t.Errorf("%d requests are at the host that hangs", sent)
	}
}

// TestStoppedWorker: what it was at is there for the next one at once.
func TestStoppedWorker(t *testing.T) {
	t.Parallel()
	j := openFile(t)
	arrived := make(chan struct{})
	s := newService(t, func(_ http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
	})
	key := j.enqueue(t, request(t, "", s.URL, ""))[0]
	ctx, stop := context.WithCancel(t.Context())
	var first sync.WaitGroup
	first.Go(func() { _ = newWorker(t, j, client.WorkerConfig{MinBackoff: time.Hour}).Run(ctx) })
	<-arrived
	stop()
	first.Wait()
	_, err := newWorker(t, j, client.WorkerConfig{}).RunOnce(t.Context())
	must(t, err)
	wants(t, j.get(t, key), client.StateAnswered, true)
	s.wantOneKey(t, 2)
}

// TestHostIsKept: a server that is reached by its address is asked by its name.
func TestHostIsKept(t *testing.T) {
	t.Parallel()
	onJournals(t, func(t *testing.T, j journal) {
		hosts := make(chan string, 1)
		s := newService(t, func(_ http.ResponseWriter, r *http.Request) { hosts <- r.Host })
		r := request(t, "", s.URL, "")
		r.Host = "pay.example"
		key := j.enqueue(t, r)[0]
		_, err := newWorker(t, j, client.WorkerConfig{}).RunOnce(t.Context())
		must(t, err)
		if host := <-hosts; host != "pay.example" {
			t.Errorf("%s was asked for", host)
		}
		o, err := j.Get(t.Context(), key)
		must(t, err)
		wants(t, o, client.StateAnswered, true)
	})
}

// TestWindowThatTheServiceTold is remembered: an answer that was cut off said for how long the key is kept, which is
// less long than its profile promises.
func TestWindowThatTheServiceTold(t *testing.T) {
	t.Parallel()
	onJournals(t, func(t *testing.T, j journal) {
		s := newService(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Idempotency-Key-Expires", time.Now().Add(10*time.Minute).UTC().Format(http.TimeFormat))
			w.Header().Set("Content-Length", "5")
			w.WriteHeader(http.StatusCreated)
		})
		key := j.enqueue(t, request(t, "", s.URL, ""))[0]
		w := newWorker(t, j, client.WorkerConfig{MinBackoff: time.Hour})
		_, err := w.RunOnce(t.Context())
		must(t, err)
		o, err := j.Get(t.Context(), key)
		must(t, err)
		wants(t, o, client.StatePending, false)
		if kept := time.Until(o.KeptUntil); kept < 8*time.Minute || kept > 10*time.Minute {
			t.Errorf("it is kept for %v", kept)
		}
		j.exec(t, `UPDATE onceward_journal SET due = 0, kept_until = kept_until - 600000000`) // ten minutes later
		_, err = w.RunOnce(t.Context())
		must(t, err)
		o, err = j.Get(t.Context(), key)
		must(t, err)
		wants(t, o, client.StateUnknown, true)
		s.wantOneKey(t, 1)
	})
}

// TestLongAnswer: what was done is not forgotten because its answer is long.
func TestLongAnswer(t *testing.T) {
	t.Parallel()
	j := openFile(t)
	s := newService(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat("x", client.MaxAnswer+1))
	})
	key := j.enqueue(t, request(t, "", s.URL, ""))[0]
	_, err := newWorker(t, j, client.WorkerConfig{}).RunOnce(t.Context())
	must(t, err)
	o := j.get(t, key)
	wants(t, o, client.StateAnswered, true)
	if !o.Answer.Truncated || len(o.Answer.Body) != client.MaxAnswer {
		t.Errorf("kept are %d bytes, truncated %t", len(o.Answer.Body), o.Answer.Truncated)
	}
}

// TestWaitEnds: with its context, which says nothing about the operation.
func TestWaitEnds(t *testing.T) {
	t.Parallel()
	j := openFile(t)
	key := j.enqueue(t, request(t, "", payURL, ""))[0]
	ctx, leave := context.WithCancel(t.Context())
	w := newWorker(t, &leaving{j, leave}, client.WorkerConfig{})
	if _, err := w.Wait(t.Context(), "another"); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("an operation that is not there: %v", err)
	}
	if _, err := w.Wait(ctx, key); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// leaving is a journal whose caller leaves as soon as it has seen an operation.
type leaving struct {
	client.Journal
	leave func()
}

func (l *leaving) Get(ctx context.Context, key string) (client.Operation, error) {
	o, err := l.Journal.Get(ctx, key)
	if err == nil {
		l.leave()
	}
	return o, err
}

// TestWhatCannotBeEnqueued is refused before anything is written.
func TestWhatCannotBeEnqueued(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(r *http.Request)
		want   string
	}{
		"a token":     {func(r *http.Request) { r.Header.Set("Authorization", "Bearer secret") }, "Prepare"},
		"a cookie":    {func(r *http.Request) { r.AddCookie(&http.Cookie{Name: "a", Value: "b"}) }, "Prepare"},
		"a password":  {func(r *http.Request) { r.URL.User = url.UserPassword("a", "b") }, "Prepare"},
		"a bad key":   {func(r *http.Request) { r.Header.Set("Idempotency-Key", "\xff") }, "key"},
		"no host":     {func(r *http.Request) { r.URL.Host = "" }, "URL"},
		"a long body": {func(r *http.Request) { r.Body = endless() }, "more than"},
		"a cut body":  {func(r *http.Request) { r.Body = io.NopCloser(iotest.ErrReader(errDisk)) }, "disk"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := request(t, "", payURL, "")
			test.change(r)
			if o, err := client.NewOperation(r); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%+v, %v", o, err)
			}
		})
	}
}

func endless() io.ReadCloser {
	return io.NopCloser(strings.NewReader(strings.Repeat("x", client.MaxBody+1)))
}

// TestMisconfiguredWorker is refused.
func TestMisconfiguredWorker(t *testing.T) {
	t.Parallel()
	if _, err := client.NewWorker(nil, client.WorkerConfig{}); !errors.Is(err, client.ErrMisconfigured) {
		t.Errorf("without a journal: %v", err)
	}
	j := openFile(t)
	for _, config := range []client.WorkerConfig{
		{SendTimeout: -1},
		{Poll: -1},
		{MaxSending: -1},
		{MaxPerHost: -1},
		{MinBackoff: -1},
		{MinBackoff: time.Hour, MaxBackoff: time.Minute},
	} {
		if _, err := client.NewWorker(j, config); !errors.Is(err, client.ErrMisconfigured) {
			t.Errorf("%+v: %v", config, err)
		}
	}
}
