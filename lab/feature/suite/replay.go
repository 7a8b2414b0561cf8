package suite

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
	"github.com/onceward/onceward/store/sqlite"
)

// testReplay: one execution, and the same bytes for each retry, with the time until which they are kept.
func testReplay(s *service, mode onceward.Option) {
	s.serve(mode)
	before := time.Now()
	first := s.want("first", s.call(keyed("k")), http.StatusCreated, false)
	for range 3 {
		again := s.call(keyed("k"))
		s.wantSame("replay", again, first)
		if !again.Expires.Equal(first.Expires) {
			s.Errorf("the replay is kept until %s, the answer until %s", again.Expires, first.Expires)
		}
	}
	if first.Expires.Before(before.Add(23 * time.Hour)) {
		s.Errorf("the answer is kept until %s", first.Expires)
	}
	other := s.want("another key", s.call(keyed("l")), http.StatusCreated, false)
	if other.Body == first.Body || !strings.Contains(first.Body, `"id"`) {
		s.Errorf("another key is answered with %q, like the first one with %q", other.Body, first.Body)
	}
	s.wantRuns("two keys", 2)
	s.wantQuiet()
}

// testReplayOfHeaders: the fields of an answer are stored with it; what a handler sets on one run is on no other one.
func testReplayOfHeaders(s *service) {
	s.serveWork(func(_ context.Context, p Payment) Reply {
		header := map[string]string{"Location": "/payments/7", "Content-Type": "text/plain; charset=iso-8859-1"}
		if p.Amount == 8 {
			header = map[string]string{"X-Other": "yes"}
		}
		return Reply{Status: http.StatusAccepted, Body: "bytes \x00\xff", Header: header}
	}, reserved)
	first := s.want("first", s.call(keyed("k")), http.StatusAccepted, false)
	again := s.call(keyed("k"))
	s.wantSame("replay", again, first)
	for _, name := range []string{"Location", "Content-Type"} {
		got, want := again.Header.Values(name), first.Header.Values(name)
		if len(want) != 1 || !slices.Equal(got, want) {
			s.Errorf("%s is %q at first, and %q on the replay", name, want, got)
		}
	}
	if got := first.Header.Get("Location"); got != "/payments/7" {
		s.Errorf("Location is %q", got)
	}
	other := keyed("l")
	other.Amount = 8
	answer := s.want("other fields", s.call(other), http.StatusAccepted, false)
	if answer.Header.Get("X-Other") != "yes" || answer.Header.Get("Location") != "" {
		s.Errorf("the fields of another answer are %v", answer.Header)
	}
}

// testNames: one operation has one name, whatever is asked of it.
func testNames(s *service) {
	s.serve(onceward.Transactional())
	for i := range 20 {
		r := keyed(fmt.Sprint("k", i))
		r.Account = fmt.Sprint("account-", i)
		s.want("account", s.call(r), http.StatusCreated, false)
	}
	for _, e := range observed[onceward.DecidedEvent](s) {
		if e.Operation != s.adapter.Operation {
			s.Fatalf("the operation is named %q, want %q", e.Operation, s.adapter.Operation)
		}
	}
	s.wantPayments("each account", 20)
	s.wantQuiet()
}

// lent lets a handler use text that lies in memory which is used again when it returns, as fiber's is.
func lent(text string, use func(text string)) {
	lent := []byte(text)
	use(unsafe.String(&lent[0], len(lent)))
	for i := range lent {
		lent[i] = '!'
	}
}

// testReusedMemory: what a handler says of its operation is copied, because a framework may use the memory of a request
// again. The record of one tenant must not end with the words of another.
func testReusedMemory(s *service) {
	records := memory.New() // which keeps what it is given
	s.serveWith(setup{
		wrap: func(*sqlite.Store) store.Store { return records },
		work: func(ctx context.Context, p Payment) Reply {
			op, status := onceward.FromContext(ctx), http.StatusCreated
			switch p.Memo {
			case "answer":
				lent("ch_7", op.SetProviderID)
			case "reason":
				lent("timed out", op.SetReason)
				op.Unknown()
				status = http.StatusBadGateway
			case "point":
				op.Unknown()
				op.SetReason("charged")
				status = http.StatusBadGateway
				lent("charged", func(text string) {
					data := unsafe.Slice(unsafe.StringData(text), len(text))
					s.must(op.Checkpoint(store.Checkpoint{Point: text, ProviderID: text, Data: data}))
				})
			}
			return Reply{Status: status, Body: "done"}
		},
	}, reserved)
	for memo, want := range map[string]store.Record{
		"answer": {ProviderID: "ch_7"},
		"reason": {LastError: "timed out"},
		"point":  {LastError: "charged", ProviderID: "charged", Point: "charged", Data: []byte("charged")},
	} {
		r := keyed(memo)
		r.Memo = memo
		s.call(r)
		got, err := records.Get(s.Context(), store.ID{Scope: r.Tenant, Key: r.Key})
		s.must(err)
		if got.ProviderID != want.ProviderID || got.LastError != want.LastError || got.Point != want.Point ||
			string(got.Data) != string(want.Data) {
			s.Errorf("E7: %s: the record has provider's id %q, reason %q, point %q, data %q; want %q, %q, %q, %q", memo,
				got.ProviderID, got.LastError, got.Point, got.Data, want.ProviderID, want.LastError, want.Point, want.Data)
		}
	}
}

// testMismatch: a key that comes back for something else is refused, and what it was for at first is not touched.
func testMismatch(s *service, mode onceward.Option) {
	s.serve(mode)
	first := s.want("first", s.call(keyed("k")), http.StatusCreated, false)
	amount, account, refund := keyed("k"), keyed("k"), keyed("k")
	amount.Amount, account.Account, refund.Refund = 8, "b", true
	for what, r := range map[string]Request{"amount": amount, "account": account, "operation": refund} {
		got := s.wantProblem("another "+what, s.call(r), http.StatusUnprocessableEntity, "mismatch")
		if got.Retryable {
			s.Errorf("another %s is retryable: %+v", what, got)
		}
	}
	s.wantSame("replay", s.call(keyed("k")), first)
	s.wantRuns("one key", 1)
}

// testSharedName: two operations under one name are two: what one was asked for is never answered with what the other
// did, however alike the two requests are.
func testSharedName(s *service, mode onceward.Option) {
	s.serve(mode, onceward.OperationName("money"))
	refund := keyed("k")
	refund.Refund = true
	first := s.want("first", s.call(keyed("k")), http.StatusCreated, false)
	s.wantProblem("F1: the other operation", s.call(refund), http.StatusUnprocessableEntity, "mismatch")
	s.wantSame("replay", s.call(keyed("k")), first)
	s.wantRuns("one key", 1)
}

// testOtherTenant: a key is that of its tenant alone.
func testOtherTenant(s *service, mode onceward.Option) {
	s.serve(mode)
	first := s.want("alice", s.call(keyed("k")), http.StatusCreated, false)
	bob := keyed("k")
	bob.Tenant = "bob"
	other := s.want("bob", s.call(bob), http.StatusCreated, false)
	if other.Body == first.Body {
		s.Errorf("bob got %q, which is alice's", other.Body)
	}
	s.wantSame("bob again", s.call(bob), other)
	s.wantSame("alice again", s.call(keyed("k")), first)
	s.wantRuns("two tenants", 2)
}

// testManyKeys: what is under way at the same time does not get into each other's way.
func testManyKeys(s *service, mode onceward.Option) {
	s.serveWork(func(ctx context.Context, p Payment) Reply {
		if err := s.write(ctx, onceward.FromContext(ctx).Key(), p); err != nil {
			return Reply{Status: http.StatusInternalServerError, Body: err.Error()}
		}
		return Reply{Status: http.StatusCreated, Body: fmt.Sprint(p.Account, " paid ", p.Amount, " ", p.Memo)}
	}, mode)
	const keys, copies = 40, 3
	answers := make(chan string, keys*copies)
	slots := make(chan struct{}, 16)
	for i := range keys * copies {
		slots <- struct{}{}
		go func() {
			defer func() { <-slots }()
			r := keyed(fmt.Sprint("key-", i%keys))
			r.Account, r.Amount, r.Memo = fmt.Sprint("account-", i%keys), int64(i%keys), strings.Repeat("m", i%keys)
			want := fmt.Sprint(r.Account, " paid ", r.Amount, " ", r.Memo)
			for {
				got, err := s.caller.Call(s.Context(), r)
				if err == nil && got.Code == "in-progress" {
					continue
				}
				if err != nil || got.Status != http.StatusCreated || got.Body != want {
					answers <- fmt.Sprintf("got %+v, error %v, want %q", got, err, want)
					return
				}
				answers <- ""
				return
			}
		}()
	}
	for range keys * copies {
		if wrong := await.Value(s, "an answer", answers); wrong != "" {
			s.Error(wrong)
		}
	}
	s.wantRuns("each key", keys)
	s.wantQuiet()
}
