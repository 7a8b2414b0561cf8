package storetest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
)

// testContent checks that content is returned exactly as it was stored, byte for byte (A2, A3).
func testContent(t *testing.T, h Harness) {
	h.test(t, "first error", firstError)
	body := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(i)
		}
		return b
	}
	size := 1 << 20
	if h.Features.MaxBody > 0 {
		size = min(size, h.Features.MaxBody)
	}
	responses := map[string]store.Response{
		"no body":           {Status: 204},
		"empty body":        {Status: 200, Body: []byte{}},
		"one zero byte":     {Status: 200, Body: []byte{0}},
		"every byte":        {Status: 200, Body: body(256)},
		"JSON as it was":    {Status: 200, Body: []byte("{ \"b\" : 1.0,\n\t\"a\": 1e2, \"a\": 3 }\n")},
		"not UTF-8":         {Status: 200, Body: []byte("\xff\xfe\x00\x80")},
		"largest body":      {Status: 200, Body: body(size)},
		"many headers":      {Status: 200, Header: manyHeaders(200), Body: []byte("x")},
		"repeated headers":  {Status: 200, Header: repeatedHeaders()},
		"odd header values": {Status: 200, Header: oddHeaders()},
		"removed headers":   {Status: 200, Header: removedHeaders()},
		"not stored":        {Status: 200, Header: manyHeaders(2), NotStored: true},
		"everything":        rich().Response,
	}
	for _, status := range []int{200, 201, 202, 299, 301, 304, 400, 404, 409, 422, 500, 599} {
		responses[fmt.Sprint("status ", status)] = store.Response{Status: status}
	}
	h.test(t, "responses", func(e *env) {
		for name, response := range responses {
			e.Run(name, func(t *testing.T) { e.with(t).keeps(name, response) })
		}
	})
	h.test(t, "carried data", carriedData)
	h.test(t, "facts about the record", factsKept)
	h.test(t, "reasons of any kind", anyReason)
	h.test(t, "the longest lease and retention", longestTimes)
}

func manyHeaders(n int) []store.HeaderField {
	var fields []store.HeaderField
	for i := range n {
		fields = append(fields,
			store.HeaderField{Name: fmt.Sprintf("X-Field-%d", i), Value: strings.Repeat("v", i), Append: i%3 == 0})
	}
	return fields
}

func repeatedHeaders() []store.HeaderField {
	return []store.HeaderField{
		{Name: "Link", Value: "z"},
		{Name: "Vary", Value: "Accept"},
		{Name: "Link", Value: "a"},
		{Name: "Link", Value: "a"},
		{Name: "Link", Value: "b, c"},
		{Name: "Vary", Value: "Origin", Append: true},
		{Name: "link", Value: "lower"},
	}
}

func removedHeaders() []store.HeaderField {
	return []store.HeaderField{
		{Name: "Content-Type", Removed: true},
		{Name: "Vary", Value: "Origin"},
		{Name: "X-Frame-Options", Removed: true},
		{Name: "X-Value"},
	}
}

func oddHeaders() []store.HeaderField {
	var bytes strings.Builder
	for c := range 256 {
		bytes.WriteByte(byte(c))
	}
	return []store.HeaderField{
		{Name: "X-Empty", Value: ""},
		{Name: "X-Binary", Value: bytes.String()},
		{Name: "X-Latin-1", Value: "caf\xe9"},
		{Name: "X-Utf-8", Value: "café"},
		{Name: "X-Space", Value: " padded "},
		{Name: "X-Empty", Value: "", Append: true},
	}
}

// keeps stores a response and reads it back in each possible way.
func (e *env) keeps(name string, want store.Response) {
	e.Helper()
	c := e.own(id(name))
	_, err := e.Store.Complete(e.ctx, c, &store.Completion{Response: want})
	e.must(err)
	e.sameResponse("the record", e.get(c.ID).Response, want)
	v := e.wantDecision(request(c.ID), store.DecisionReplay, "section 6")
	e.sameResponse("the replay", v.Record.Response, want)
	if _, err := e.Store.Complete(e.ctx, c, &store.Completion{Response: want}); err != nil {
		e.Errorf("S6: repeating the completion with the same content got %v", err)
	}
	if !has[store.Reconciler](e.Instance) {
		return
	}
	lost := e.lose(id(name + ", lost"))
	e.must(e.Store.(store.Reconciler).ResolveCompleted(e.ctx, lost, &store.Completion{Response: want}))
	e.sameResponse("the resolved record", e.get(lost.ID).Response, want)
}

func (e *env) sameResponse(where string, got, want store.Response) {
	e.Helper()
	if !got.Equal(&want) {
		e.Errorf("A2: %s holds (%d, %d headers, %d bytes, not stored %t), want (%d, %d headers, %d bytes, not stored %t), "+
			"byte for byte",
			where, got.Status, len(got.Header), len(got.Body), got.NotStored, want.Status, len(want.Header), len(want.Body),
			want.NotStored)
	}
}

// carriedData checks the data that a phased operation carries from attempt to attempt (E3).
func carriedData(e *env) {
	large := []byte(strings.Repeat("\x00\xff carried", 64<<10/10))
	c := e.own(id("key"), resume, lease(e.brief()))
	e.must(e.Store.Checkpoint(e.ctx, c, store.Checkpoint{Point: "charged", Data: large}))
	e.must(e.Store.Checkpoint(e.ctx, c, store.Checkpoint{Point: "shipped"}))
	lapse(e)
	v := e.reserve(request(c.ID, resume))
	if v.Record.Point != "shipped" || string(v.Record.Data) != string(large) {
		e.Errorf("E3: resumed at point %q with %d bytes, want %q with %d", v.Record.Point, len(v.Record.Data),
			"shipped", len(large))
	}
	c.Attempt = v.Record.Attempt
	e.must(e.Store.Checkpoint(e.ctx, c, store.Checkpoint{Data: []byte{}}))
	if rec := e.get(c.ID); len(rec.Data) != 0 || rec.Point != "shipped" {
		e.Errorf("E3: empty data replaces what was carried: point %q with %d bytes", rec.Point, len(rec.Data))
	}
	e.must(e.Store.Checkpoint(e.ctx, c, store.Checkpoint{Data: []byte("compared")}))
	e.must(e.Store.Release(e.ctx, c, "to be continued"))
	if v := e.reserve(request(c.ID, resume)); v.Record.Point != "shipped" || string(v.Record.Data) != "compared" {
		e.Errorf("B4: after a release, retried at point %q with %q, want what was carried", v.Record.Point,
			v.Record.Data)
	}
}

// factsKept checks the fields that only people and reconcilers read.
func factsKept(e *env) {
	r := request(id("key"), resume, session(9))
	r.Operation, r.TraceID = "POST /v1/π/{id}", strings.Repeat("f", 32)
	granted := e.reserve(r)
	c := store.Claim{ID: r.ID, Attempt: granted.Record.Attempt}
	e.must(e.Store.Checkpoint(e.ctx, c, store.Checkpoint{Point: "été", NotReplayable: true}))
	e.must(e.Store.Abandon(e.ctx, c, "délai dépassé"))
	rec := e.get(c.ID)
	if granted.Record.Nonce != r.Nonce {
		e.Errorf("S9: a grant holds the nonce %x, want %x", granted.Record.Nonce, r.Nonce)
	}
	if rec.Operation != r.Operation || rec.TraceID != r.TraceID || rec.Point != "été" || !rec.NotReplayable ||
		rec.LastError != "délai dépassé" || rec.OnLost != store.LostResume || rec.Nonce != (store.Nonce{}) ||
		rec.Fingerprint != r.Fingerprints[0] || rec.Version != store.RecordVersion || rec.Retention != r.Retention {
		e.Errorf("section 11: the record does not hold what was stored: %+v", rec)
	}
	done := rich()
	_, err := e.Store.Complete(e.ctx, c, done)
	e.must(err)
	if rec := e.get(c.ID); rec.ProviderID != done.ProviderID || rec.Retention != done.Retention || rec.LastError != "" {
		e.Errorf("section 11: a completed record holds provider %q, retention %s, last error %q", rec.ProviderID,
			rec.Retention, rec.LastError)
	}
}

// anyReason checks that no error text prevents an owner from giving up its record: such texts come from anywhere.
func anyReason(e *env) {
	for i, reason := range []string{"", "\x00\xff not text", strings.Repeat("long ", 20_000), "quote ' \" \\ ;"} {
		c := e.own(id(fmt.Sprint("release ", i)))
		e.must(e.Store.Release(e.ctx, c, reason))
		e.wantState(c.ID, store.StateRetryable, "E5: released with any reason")
		c = e.own(id(fmt.Sprint("abandon ", i)))
		e.must(e.Store.Abandon(e.ctx, c, reason))
		e.wantState(c.ID, store.StateUnknown, "E5: abandoned with any reason")
	}
}

// longestTimes checks that the longest lease and the longest retention of a route are stored unchanged.
func longestTimes(e *env) {
	longest := func(key string) *store.Reservation {
		return request(id(key), lease(onceward.MaxLease),
			func(r *store.Reservation) { r.Retention = onceward.MaxRetention })
	}
	kept := func(key string) {
		rec := e.get(id(key))
		if rec.Retention != onceward.MaxRetention || rec.ExpiresAt.Sub(rec.SettledAt) != onceward.MaxRetention {
			e.Errorf("section 11: %q is kept for %s, from %s until %s, want %s",
				key, rec.Retention, rec.SettledAt, rec.ExpiresAt, onceward.MaxRetention)
		}
	}
	v := e.wantDecision(longest("reserved"), store.DecisionExecute, "S5")
	if off := v.Record.LeaseUntil.Sub(v.Now) - onceward.MaxLease; off.Abs() > time.Second {
		e.Errorf("S5: a lease of %s lasts from %s until %s", onceward.MaxLease, v.Now, v.Record.LeaseUntil)
	}
	c := store.Claim{ID: v.Record.ID, Attempt: v.Record.Attempt}
	e.must(e.Store.Extend(e.ctx, c, onceward.MaxLease))
	e.complete(c, "done")
	kept("reserved")
	if has[store.Transactor](e.Instance) {
		e.transacted(longest("transacted"), settling(store.TxCommit, "done"), store.DecisionExecute, "E1")
		kept("transacted")
	}
}

// firstError checks that the first of several errors is kept beside the last, whichever writes change the record in
// between.
func firstError(e *env) {
	for name, text := range oddTexts() {
		target := id("error " + name)
		want := func(first, last string) {
			e.Helper()
			if rec := e.get(target); rec.FirstError != first || rec.LastError != last {
				e.Errorf("the record says %.60q and %.60q, want %.60q and %.60q", rec.FirstError, rec.LastError, first, last)
			}
		}
		c := e.own(target)
		e.must(e.Store.Release(e.ctx, c, "first "+text))
		want("", "first "+text)
		v := e.reserve(request(target))
		if v.Record.FirstError != "first "+text {
			e.Errorf("the grant says %.60q, want %.60q", v.Record.FirstError, "first "+text)
		}
		c.Attempt = v.Record.Attempt
		want("first "+text, "")
		e.must(e.Store.Checkpoint(e.ctx, c, store.Checkpoint{Point: "sent"}))
		e.must(e.Store.Extend(e.ctx, c, calm))
		e.must(e.Store.Abandon(e.ctx, c, text))
		want("first "+text, text)
		_, err := e.Store.Complete(e.ctx, c, answer("done"))
		e.must(err)
		want("first "+text, "")
	}
}
