package dynamodb

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/onceward/onceward/store"
)

var update = flag.Bool("update", false, "write the golden files")

// golden is an item as it is kept in a file.
type golden map[string]struct {
	B []byte `json:",omitempty"`
	S string `json:",omitempty"`
	N string `json:",omitempty"`
}

// stored are values of each shape.
func stored() map[string]*value {
	at := time.Date(2026, 3, 4, 5, 6, 7, 8000, time.UTC)
	id := store.ID{Scope: "acme", Key: "order-42"}
	rec := store.Record{
		ID: id, Version: store.RecordVersion, State: store.StateInProgress, Operation: "POST /payments",
		Fingerprint: store.Fingerprint{Secret: 7, Rules: 1, Sum: [32]byte{1, 2, 3}}, Attempt: at.UnixMicro(),
		Nonce: store.Nonce{9}, LeaseUntil: at.Add(30 * time.Second), Retention: 24 * time.Hour, CreatedAt: at,
		Point: "charged", Data: []byte("carried"), ProviderID: "ch_1", DownstreamSecret: 3,
	}
	done := rec
	done.State, done.Nonce, done.LeaseUntil = store.StateCompleted, store.Nonce{}, time.Time{}
	done.SettledAt, done.ExpiresAt = at.Add(time.Second), at.Add(24*time.Hour+time.Second)
	done.Response = store.Response{
		Status: 201, Header: []store.HeaderField{{Name: "Content-Type", Value: "text/plain"}}, Body: []byte("paid\x00\xff"),
	}
	large := done
	large.Data, large.Response.Body = bytes.Repeat([]byte("carried"), 200), bytes.Repeat([]byte("paid"), 300)
	return map[string]*value{
		"in-progress": {Record: rec, write: "\x01write-000001", commit: "\x01write-000000"},
		"completed":   {Record: done, write: "\x02write-000002"},
		"large":       {Record: large, write: "\x02write-000005"},
		"removed":     {write: "\x00write-000003", floor: 42},
		"claimed":     {write: "\x00write-000004", claim: claim{token: 43, until: at.Add(time.Minute)}},
	}
}

// sharded is a store that can make items, and nothing else.
func sharded() *Store {
	s := &Store{}
	s.shards.Store(defaultShards)
	return s
}

// TestGoldenItems: what was ever stored stays readable (S8).
func TestGoldenItems(t *testing.T) {
	t.Parallel()
	s := sharded()
	at := placeOf(store.ID{Scope: "acme", Key: "order-42"})
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	for name, v := range stored() {
		file := filepath.Join("testdata", "items", name+".json")
		if *update {
			writeGolden(t, file, s.encode(&at, v, now))
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var kept golden
		if err := json.Unmarshal(text, &kept); err != nil {
			t.Fatal(err)
		}
		it := make(item)
		for attribute, g := range kept {
			switch {
			case g.S != "":
				it[attribute] = textValue(g.S)
			case g.N != "":
				it[attribute] = &types.AttributeValueMemberN{Value: g.N}
			default:
				it[attribute] = binaryValue(g.B)
			}
		}
		got, err := decode(&at, it)
		if err != nil || got.write != v.write || got.commit != v.commit || got.floor != v.floor || got.claim != v.claim {
			t.Errorf("%s: read as %+v (%v)", name, got, err)
			continue
		}
		if !bytes.Equal(got.AppendBinary(nil), v.AppendBinary(nil)) || got.State != store.StateNone && got.ID != at.id {
			t.Errorf("%s: the record is read as %+v, want %+v", name, got.Record, v.Record)
		}
		if again := s.encode(&at, got, now); sizeOf(again) != sizeOf(it) {
			t.Errorf("%s: written again it has %d bytes, and had %d", name, sizeOf(again), sizeOf(it))
		}
	}
}

// TestDamagedItem: an item that has lost its record, or the end of it, is not taken for one without a record, which
// would execute again.
func TestDamagedItem(t *testing.T) {
	t.Parallel()
	s := sharded()
	at := placeOf(store.ID{Scope: "acme", Key: "order-42"})
	whole := bytesOf(s.encode(&at, stored()["completed"], time.Unix(0, 0))[attrRecord])
	for kept := range whole {
		it := s.encode(&at, stored()["completed"], time.Unix(0, 0))
		it[attrRecord] = binaryValue(whole[:kept])
		v, err := decode(&at, it)
		if !errors.Is(err, store.ErrUnreadable) || kept >= writeSize && v.State != store.StateCompleted {
			t.Errorf("S8: with %d bytes of %d it is %s (%v), want ErrUnreadable", kept, len(whole), v.State, err)
		}
	}
	it := s.encode(&at, stored()["completed"], time.Unix(0, 0))
	delete(it, attrRecord)
	if v, err := decode(&at, it); !errors.Is(err, store.ErrUnreadable) {
		t.Errorf("S8: without its record it is %s (%v), want ErrUnreadable", v.State, err)
	}
	for state := range store.StateExpired + 2 {
		it[attrRecord] = binaryValue(append([]byte{byte(state)}, whole[1:]...))
		if v, err := decode(&at, it); state != store.StateCompleted && !errors.Is(err, store.ErrUnreadable) {
			t.Errorf("S8: by a write that left %s it is %s (%v), want ErrUnreadable", state, v.State, err)
		}
	}
}

func writeGolden(t *testing.T, file string, it item) {
	t.Helper()
	kept := make(golden)
	for attribute, v := range it {
		g := kept[attribute]
		g.B, g.S = bytesOf(v), textOf(v)
		if n, ok := v.(*types.AttributeValueMemberN); ok {
			g.N = n.Value
		}
		kept[attribute] = g
	}
	text, err := json.MarshalIndent(kept, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, append(text, '\n'), 0o600))
	if err != nil {
		t.Fatal(err)
	}
}

// FuzzDecode: damaged items are unreadable, and nothing worse; they keep no other record from being listed.
func FuzzDecode(f *testing.F) {
	s := sharded()
	at := placeOf(store.ID{Scope: "acme", Key: "order-42"})
	for _, v := range stored() {
		it := s.encode(&at, v, time.Unix(0, 0))
		f.Add(bytesOf(it[attrRecord]), bytesOf(it[attrClaim]))
	}
	f.Fuzz(func(t *testing.T, record, claim []byte) {
		v, err := decode(&at, item{attrRecord: binaryValue(record), attrClaim: binaryValue(claim)})
		if v == nil || err != nil && !errors.Is(err, store.ErrUnreadable) {
			t.Fatalf("read as %+v: %v", v, err)
		}
		if err != nil && v.LastError == "" {
			t.Fatal("an item that cannot be read does not say why")
		}
	})
}
