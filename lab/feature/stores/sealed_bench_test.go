package stores_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// BenchmarkSealedFirst is a first execution with an answer of 4 KiB of JSON, by sixteen callers on PostgreSQL.
func BenchmarkSealedFirst(b *testing.B) {
	for _, kind := range []string{"plain", "sealed"} {
		b.Run(kind, func(b *testing.B) {
			inside, err := postgres.Open(b.Context(), servers.Postgres(b).SchemaURL(b), postgres.WithLogger(quiet))
			must(b, err)
			defer func() { _ = inside.Close() }()
			s := store.Store(inside)
			if kind == "sealed" {
				s = seal(b, inside, ring(1))
			}
			executeAll(b, s)
		})
	}
}

func executeAll(b *testing.B, s store.Store) {
	b.Helper()
	answer := store.Response{
		Status: 201, Header: []store.HeaderField{{Name: "Content-Type", Value: "application/json"}}, Body: payments(),
	}
	var next atomic.Uint64
	b.SetParallelism(8)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			n := next.Add(1)
			r := &store.Reservation{
				ID: store.ID{Scope: "acme", Key: fmt.Sprintf("order-%d", n)}, Operation: "POST /payments",
				Fingerprints: []store.Fingerprint{{Rules: 1}}, Lease: time.Minute, Retention: time.Hour,
			}
			binary.BigEndian.PutUint64(r.Nonce[:], n)
			v, err := s.Reserve(b.Context(), r)
			if err == nil {
				_, err = s.Complete(b.Context(), store.Claim{ID: r.ID, Attempt: v.Record.Attempt},
					&store.Completion{Response: answer})
			}
			if err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// payments is 4 KiB of JSON as an API answers with.
func payments() []byte {
	var body bytes.Buffer
	for i := 0; body.Len() < 4<<10; i++ {
		id := uint64(i+1) * 0x9e3779b97f4a7c15
		fmt.Fprintf(&body, `{"id":"pay_%016x","object":"payment","amount":%d,"currency":"eur","status":"succeeded",`+
			`"customer":"cus_%08x","created_at":"2026-11-16T20:%02d:00Z"},`, id, id%100_000, uint32(id>>7), i)
	}
	return body.Bytes()[:4<<10]
}
