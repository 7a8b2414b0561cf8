package sealed_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
	"github.com/onceward/onceward/store/sealed"
)

// holding is a store that holds one record, which tests damage.
type holding struct {
	*memory.Store
	rec store.Record
}

func (h *holding) Get(context.Context, store.ID) (store.Record, error) { return h.rec, nil }

func (h *holding) List(context.Context, store.Filter) ([]store.Record, error) {
	listed := h.rec
	listed.Data, listed.Response.Body = nil, nil
	return []store.Record{listed}, nil
}

func open(t testing.TB, inside store.Store, config sealed.Config) *sealed.Store {
	t.Helper()
	s, err := sealed.New(inside, config)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func ring(ids ...uint32) sealed.Config {
	var config sealed.Config
	for _, id := range ids {
		config.Keys = append(config.Keys, testKey(id))
	}
	return config
}

var (
	testID     = store.ID{Scope: "acme", Key: "order-1"}
	testAnswer = store.Response{
		Status: 201,
		Header: []store.HeaderField{{Name: "Content-Type", Value: "application/json"}, {Name: "Location", Value: "/payments/7"}},
		Body:   []byte(strings.Repeat(`{"card":"4242 4242 4242 4242"}`, 40)),
	}
)

func reservation(change ...func(*store.Reservation)) *store.Reservation {
	r := &store.Reservation{
		ID: testID, Operation: "POST /payments", Fingerprints: []store.Fingerprint{{Secret: 1, Rules: 1}},
		Nonce: store.Nonce{byte(nonces.Add(1)), 1}, Lease: time.Minute, Retention: time.Hour,
	}
	for _, c := range change {
		c(r)
	}
	return r
}

func resumable(r *store.Reservation) { r.OnLost = store.LostResume }

// reserve asks for the right to execute, and gets it.
func reserve(t testing.TB, s store.Store, change ...func(*store.Reservation)) store.Claim {
	t.Helper()
	v, err := s.Reserve(t.Context(), reservation(change...))
	if err != nil || v.Decision != store.DecisionExecute {
		t.Fatalf("reserve: %s, %v", v.Decision, err)
	}
	return store.Claim{ID: testID, Attempt: v.Record.Attempt}
}

// completed stores the answer, behind data at a recovery point.
func completed(t testing.TB, s store.Store) store.Claim {
	t.Helper()
	c := reserve(t, s)
	must(t, s.Checkpoint(t.Context(), c, store.Checkpoint{Point: "charged", Data: []byte(`{"charge":"ch_1"}`)}))
	_, err := s.Complete(t.Context(), c, &store.Completion{Response: testAnswer})
	must(t, err)
	return c
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestEveryBit: a bit that is flipped anywhere in what is sealed, or in what it is bound to, is an error.
func TestEveryBit(t *testing.T) {
	t.Parallel()
	inside := memory.New()
	completed(t, open(t, inside, ring(1)))
	rec, err := inside.Get(t.Context(), testID)
	must(t, err)
	held := &holding{Store: inside}
	s := open(t, held, ring(1))
	flips := 0
	read := func(what string, damaged store.Record) {
		t.Helper()
		flips++
		held.rec = damaged
		if _, err := s.Get(t.Context(), testID); !errors.Is(err, store.ErrUnreadable) {
			t.Errorf("%s is read, with %v", what, err)
		}
	}
	held.rec = rec
	if got, err := s.Get(t.Context(), testID); err != nil || !got.Response.Equal(&testAnswer) {
		t.Fatalf("the record as it is: %v", err)
	}
	field := rec.Response.Header[0]
	for name, part := range map[string]struct {
		value string
		put   func(rec *store.Record, value string)
	}{
		"the header's value": {field.Value, func(rec *store.Record, v string) {
			rec.Response.Header = []store.HeaderField{{Name: field.Name, Value: v}}
		}},
		"the header's name": {field.Name, func(rec *store.Record, v string) {
			rec.Response.Header = []store.HeaderField{{Name: v, Value: field.Value}}
		}},
		"the body":  {string(rec.Response.Body), func(rec *store.Record, v string) { rec.Response.Body = []byte(v) }},
		"the data":  {string(rec.Data), func(rec *store.Record, v string) { rec.Data = []byte(v) }},
		"the scope": {rec.Scope, func(rec *store.Record, v string) { rec.Scope = v }},
		"the key":   {rec.Key, func(rec *store.Record, v string) { rec.Key = v }},
	} {
		for i := range len(part.value) * 8 {
			flipped := []byte(part.value)
			flipped[i/8] ^= 1 << (i % 8)
			damaged := rec
			part.put(&damaged, string(flipped))
			read(name, damaged)
		}
		for _, n := range []int{0, 1, len(part.value) / 2, len(part.value) - 1} {
			damaged := rec
			part.put(&damaged, part.value[:n])
			if name == "the data" && n < len(store.SealedPrefix) {
				continue // what is cut off so far looks like data of another program
			}
			read(name+", cut off", damaged)
		}
	}
	for bit := range 63 {
		damaged := rec
		damaged.Attempt ^= 1 << bit
		read("another attempt", damaged)
	}
	for bit := range 10 {
		damaged := rec
		damaged.Response.Status ^= 1 << bit
		if damaged.Response.Status == 0 {
			continue
		}
		read("another status", damaged)
	}
	for name, change := range map[string]func(*store.Record){
		"not stored": func(rec *store.Record) { rec.Response.NotStored = true },
		"an appended header": func(rec *store.Record) {
			rec.Response.Header = []store.HeaderField{{Name: field.Name, Value: field.Value, Append: true}}
		},
		"a removed header": func(rec *store.Record) {
			rec.Response.Header = []store.HeaderField{{Name: field.Name, Value: field.Value, Removed: true}}
		},
		"one header more": func(rec *store.Record) {
			rec.Response.Header = append(rec.Response.Header[:1:1], store.HeaderField{Name: "X"})
		},
		"no header":            func(rec *store.Record) { rec.Response.Header = nil },
		"the body as data":     func(rec *store.Record) { rec.Data = rec.Response.Body },
		"the data as a body":   func(rec *store.Record) { rec.Response.Body = rec.Data },
		"the header as a body": func(rec *store.Record) { rec.Response.Body = []byte(field.Value) },
	} {
		damaged := rec
		change(&damaged)
		read(name, damaged)
	}
	if flips < 1000 {
		t.Errorf("only %d changes were tried", flips)
	}
	held.rec = rec
	held.rec.Response.Status = 202
	listed, err := s.List(t.Context(), store.Filter{})
	if err != nil || listed[0].Version != 0 || listed[0].LastError == "" || listed[0].ID != testID {
		t.Errorf("a damaged record is listed as %+v, %v", listed, err)
	}
}

// TestDataAlone: data that is bound to a later attempt than that of its record is an error, and so is that of another
// key; under a later attempt it is what it was.
func TestDataAlone(t *testing.T) {
	t.Parallel()
	inside := memory.New()
	s := open(t, inside, ring(1))
	c := reserve(t, s)
	must(t, s.Checkpoint(t.Context(), c, store.Checkpoint{Data: []byte("carried")}))
	rec, err := inside.Get(t.Context(), testID)
	must(t, err)
	held := &holding{Store: inside}
	for bit := range 63 {
		held.rec = rec
		held.rec.Attempt ^= 1 << bit
		got, err := open(t, held, ring(1)).Get(t.Context(), testID)
		switch later := held.rec.Attempt > rec.Attempt; {
		case later && (err != nil || string(got.Data) != "carried"):
			t.Errorf("at a later attempt: %q, %v", got.Data, err)
		case !later && !errors.Is(err, store.ErrUnreadable):
			t.Errorf("at an earlier attempt: %q, %v", got.Data, err)
		}
	}
}

// TestNothingIsReadable: what comes to the store inside holds nothing of the content.
func TestNothingIsReadable(t *testing.T) {
	t.Parallel()
	inside := memory.New()
	c := completed(t, open(t, inside, sealed.Config{Keys: []sealed.Key{testKey(1)}, CompressFrom: -1}))
	rec, err := inside.Get(t.Context(), c.ID)
	must(t, err)
	encoded := string(rec.AppendBinary(nil))
	for _, secret := range []string{"4242", "card", "/payments/7", "ch_1", "application/json"} {
		if strings.Contains(encoded, secret) {
			t.Errorf("the record shows %q", secret)
		}
	}
}

// sameToken gives each attempt the same token, as two programs that seal the answer of one attempt have it.
type sameToken struct{ *memory.Store }

// theToken is the token of the attempt for the programs.
const theToken = 7

// Reserve implements [store.Store].
func (s sameToken) Reserve(ctx context.Context, r *store.Reservation) (store.Verdict, error) {
	v, err := s.Store.Reserve(ctx, r)
	v.Record.Attempt = theToken
	return v, err
}

// Complete implements [store.Store].
func (s sameToken) Complete(ctx context.Context, c store.Claim, done *store.Completion) (time.Time, error) {
	rec, err := s.Get(ctx, c.ID)
	if err != nil {
		return time.Time{}, err
	}
	c.Attempt = rec.Attempt
	return s.Store.Complete(ctx, c, done)
}

// TestSameBytes: the same content for the same claim is sealed alike, by any program with the ring, and in no other way
// for another claim.
func TestSameBytes(t *testing.T) {
	t.Parallel()
	sealedBy := func(id store.ID, config sealed.Config) store.Record {
		clock := &stopped{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
		inside := memory.New(memory.WithClock(clock.read))
		s := open(t, sameToken{inside}, config)
		v, err := s.Reserve(t.Context(), reservation(func(r *store.Reservation) { r.ID = id }))
		must(t, err)
		_, err = s.Complete(t.Context(), store.Claim{ID: id, Attempt: v.Record.Attempt}, &store.Completion{Response: testAnswer})
		must(t, err)
		rec, err := inside.Get(t.Context(), id)
		must(t, err)
		return rec
	}
	first, again := sealedBy(testID, ring(1)), sealedBy(testID, ring(1, 2))
	if !first.Response.Equal(&again.Response) {
		t.Error("the same content is sealed in two ways")
	}
	for name, other := range map[string]store.Record{
		"another key":    sealedBy(store.ID{Scope: testID.Scope, Key: "order-2"}, ring(1)),
		"another scope":  sealedBy(store.ID{Scope: "other", Key: testID.Key}, ring(1)),
		"another secret": sealedBy(testID, ring(2)),
	} {
		if string(first.Response.Body[20:]) == string(other.Response.Body[20:]) {
			t.Errorf("the content is sealed alike for %s", name)
		}
	}
}

// TestConfig: a ring that could not open what it seals is refused.
func TestConfig(t *testing.T) {
	t.Parallel()
	short := testKey(1)
	short.Secret = short.Secret[:16]
	for name, config := range map[string]sealed.Config{
		"no key":         {},
		"a short secret": {Keys: []sealed.Key{short}},
		"an id twice":    {Keys: []sealed.Key{testKey(1), testKey(2), testKey(1)}},
	} {
		if _, err := sealed.New(memory.New(), config); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	if _, err := sealed.New(nil, ring(1)); err == nil {
		t.Error("no store is accepted")
	}
	if _, err := sealed.New(open(t, memory.New(), ring(1)), ring(1)); err == nil {
		t.Error("a store that is sealed already is accepted")
	}
}
