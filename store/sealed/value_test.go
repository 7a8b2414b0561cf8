package sealed

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

var update = flag.Bool("update", false, "write the golden files of testdata that are missing")

func goldenStore(t testing.TB, ids ...uint32) *Store {
	t.Helper()
	var config Config
	for _, id := range ids {
		config.Keys = append(config.Keys, Key{ID: id, Secret: bytes.Repeat([]byte{byte(id)}, secretSize)})
	}
	s, err := New(memory.New(), config)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var (
	goldenClaim  = store.Claim{ID: store.ID{Scope: "acme", Key: "order-1"}, Attempt: 7}
	goldenAnswer = store.Response{
		Status: 201, Header: []store.HeaderField{{Name: "Location", Value: "/payments/7"}},
		Body: []byte(strings.Repeat(`{"payment":"pay_7","amount":1999}`, 30)),
	}
	goldenEvent = store.ExternalEvent{
		Source: "stripe", EventID: "evt_1", Scope: "acme", Subject: "ch_1", At: time.UnixMicro(1_700_000_000_000_000),
		Body: []byte("paid"),
	}
	goldenEntry = outbox.Entry{
		ID: "01890a5d-ac96-774b-bcce-b302099a8057", Origin: goldenClaim.ID, OriginAttempt: 7, DownstreamKey: "d",
		Message: outbox.Message{
			Topic: "charges", Type: "payment.created", Payload: []byte(`{"id":7}`), ContentType: "application/json",
			Headers: map[string]string{"b": "2", "a": "1"},
		},
	}
)

// golden is one sealed value of each kind. From the first release on the files are never changed, only added to: they are
// what was once written.
func golden(t testing.TB, s *Store) map[string][]byte {
	t.Helper()
	values := make(map[string][]byte)
	keep := func(name string, value []byte, err error) {
		if err != nil {
			t.Fatal(err)
		}
		values[name] = value
	}
	for name, p := range map[string]place{
		"answer": {claim: goldenClaim}, "answer-in-tx": {claim: goldenClaim, inTx: true},
		"late": {claim: goldenClaim, late: true},
	} {
		sealed, err := s.sealResponse(p, goldenAnswer)
		keep(name+"-header", []byte(sealed.Header[0].Value), err)
		keep(name+"-body", sealed.Body, err)
	}
	data, err := s.sealData(goldenClaim, []byte(`{"charge":"ch_1"}`))
	keep("data", data, err)
	event, err := s.ring.seal(eventBinding(&goldenEvent), goldenEvent.Body)
	keep("event", event, err)
	entry := goldenEntry
	err = s.SealEntry(&entry)
	keep("message", entry.Payload, err)
	return values
}

// TestGolden: what was ever sealed opens, and what is not compressed is sealed in the same bytes for ever. Compressed
// bytes may differ between versions of the compressor.
func TestGolden(t *testing.T) {
	t.Parallel()
	s := goldenStore(t, 1)
	for name, value := range golden(t, s) {
		file := filepath.Join("testdata", "v1-"+name+".hex")
		if _, err := os.Stat(file); *update && errors.Is(err, os.ErrNotExist) {
			if err := os.WriteFile(file, []byte(hex.EncodeToString(value)+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		stored, err := hex.DecodeString(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		h, _, err := parseHead(value)
		if err != nil || !h.compressed && !bytes.Equal(stored, value) {
			t.Errorf("%s is sealed in other bytes than before: %v", name, err)
		}
		opensAs(t, s, name, stored)
	}
}

// opensAs opens a golden value in its place.
func opensAs(t *testing.T, s *Store, name string, value []byte) {
	t.Helper()
	var err error
	ok := true
	switch name {
	case "data":
		value, err = s.openData(goldenClaim, value)
		ok = string(value) == `{"charge":"ch_1"}`
	case "event":
		value, _, err = s.ring.open(eventBinding(&goldenEvent), value)
		ok = string(value) == "paid"
	case "message":
		entry := goldenEntry
		entry.Payload, entry.Headers = value, nil
		err = s.opens(&entry)
		ok = bytes.Equal(entry.Payload, goldenEntry.Payload) && maps.Equal(entry.Headers, goldenEntry.Headers)
	default:
		place := place{claim: goldenClaim, late: strings.HasPrefix(name, "late")}
		read := func(part string) []byte {
			text, _ := os.ReadFile(filepath.Join("testdata", "v1-"+name[:strings.LastIndex(name, "-")]+"-"+part+".hex"))
			value, _ := hex.DecodeString(strings.TrimSpace(string(text)))
			return value
		}
		r := store.Response{
			Status: 201, Body: read("body"),
			Header: []store.HeaderField{{Name: store.SealedField, Value: string(read("header"))}},
		}
		err = s.openResponse(place, &r, false)
		ok = r.Equal(&goldenAnswer)
	}
	if err != nil || !ok {
		t.Errorf("%s does not open any more: %v", name, err)
	}
}

// FuzzOpen: no bytes make it panic, and none open but what was sealed.
func FuzzOpen(f *testing.F) {
	s := goldenStore(f, 1)
	known := golden(f, s)
	for _, value := range known {
		f.Add(value)
	}
	data := known["data"]
	f.Fuzz(func(t *testing.T, value []byte) {
		got, err := s.openData(goldenClaim, value)
		if err == nil && store.IsSealed(value) && !bytes.Equal(value, data) {
			t.Errorf("%x opens as %q", value, got)
		}
		r := store.Response{Status: 201, Header: []store.HeaderField{{Name: store.SealedField, Value: string(value)}}, Body: value}
		if s.openResponse(place{claim: goldenClaim}, &r, false) == nil {
			t.Errorf("%x opens as an answer", value)
		}
		_, _, _ = splitMessage(value)
	})
}

// TestBomb: content that unfolds to more than was ever sealed is an error, as is sealing so much.
func TestBomb(t *testing.T) {
	t.Parallel()
	s := goldenStore(t, 1)
	b := dataBinding(goldenClaim.ID, goldenClaim.Attempt)
	bomb, err := s.ring.seal(b, make([]byte, 4<<20))
	if err != nil || len(bomb) > 10_000 {
		t.Fatalf("%d bytes, %v", len(bomb), err)
	}
	if err := s.ring.limit(1 << 20); err != nil {
		t.Fatal(err)
	}
	if content, err := s.openData(goldenClaim, bomb); !errors.Is(err, store.ErrUnreadable) {
		t.Errorf("a bomb unfolds to %d bytes, %v", len(content), err)
	}
	if _, err := s.ring.seal(b, make([]byte, 1<<20+1)); err == nil {
		t.Error("what could not be opened is sealed")
	}
}

// TestMessageInItsPlace: a message opens with all that is delivered with it, and with nothing else.
func TestMessageInItsPlace(t *testing.T) {
	t.Parallel()
	s := goldenStore(t, 1)
	sealed := goldenEntry
	if err := s.SealEntry(&sealed); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(e *outbox.Entry){
		"id":            func(e *outbox.Entry) { e.ID = "01890a5d-ac96-774b-bcce-b302099a8058" },
		"scope":         func(e *outbox.Entry) { e.Origin.Scope = "other" },
		"key":           func(e *outbox.Entry) { e.Origin.Key = "other" },
		"attempt":       func(e *outbox.Entry) { e.OriginAttempt++ },
		"topic":         func(e *outbox.Entry) { e.Topic = "refunds" },
		"type":          func(e *outbox.Entry) { e.Type = "payment.refunded" },
		"subject":       func(e *outbox.Entry) { e.Subject = "other" },
		"content type":  func(e *outbox.Entry) { e.ContentType = "text/plain" },
		"downstream":    func(e *outbox.Entry) { e.DownstreamKey = "e" },
		"headers":       func(e *outbox.Entry) { e.Headers = map[string]string{"c": "3"} },
		"no payload":    func(e *outbox.Entry) { e.Payload = e.Payload[:20] },
		"a flipped bit": func(e *outbox.Entry) { e.Payload = bytes.Clone(e.Payload); e.Payload[1] ^= 1 },
	} {
		e := sealed
		change(&e)
		s.openEntry(&e)
		if !errors.Is(e.Unreadable, store.ErrUnreadable) || e.Payload != nil || e.Headers != nil {
			t.Errorf("with another %s it opens as %q, %v", name, e.Payload, e.Unreadable)
		}
	}
	e := sealed
	s.openEntry(&e)
	if e.Unreadable != nil || !bytes.Equal(e.Payload, goldenEntry.Payload) || !maps.Equal(e.Headers, goldenEntry.Headers) {
		t.Errorf("it opens as %q %v, %v", e.Payload, e.Headers, e.Unreadable)
	}
}

// TestSealedOnce: a message that was sealed when it was made is not sealed a second time, and one that only looks sealed
// is sealed.
func TestSealedOnce(t *testing.T) {
	t.Parallel()
	s := goldenStore(t, 1)
	var added *outbox.Entry
	hand := func(e *outbox.Entry) error { added = e; return nil }
	entry := goldenEntry
	if err := s.SealEntry(&entry); err != nil {
		t.Fatal(err)
	}
	if err := s.add(&entry, hand); err != nil || added != &entry {
		t.Errorf("a sealed message is added as %+v, %v", added, err)
	}
	lookalike := goldenEntry
	lookalike.Payload = []byte(store.SealedPrefix + "\x01 as a client may send it")
	if err := s.add(&lookalike, hand); err != nil || bytes.Equal(added.Payload, lookalike.Payload) {
		t.Errorf("a payload that looks sealed is added as it is, %v", err)
	}
}
