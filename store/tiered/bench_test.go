package tiered_test

import (
	"context"
	"crypto/rand"
	"testing"
	"time"

	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
	"github.com/onceward/onceward/store/tiered"
)

// BenchmarkReplay is what a replay costs beside what its front takes.
func BenchmarkReplay(b *testing.B) {
	front := tiered.NewMemory(tiered.MemoryConfig{})
	s, err := tiered.New(memory.New(), front, tiered.Config{MaxAge: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	ctx := context.Background()
	id := store.ID{Scope: "acme", Key: "0190b5f2-7c3a-7def-8abc-0123456789ab"}
	r := request(id)
	v, err := s.Reserve(ctx, r)
	if err != nil {
		b.Fatal(err)
	}
	done := &store.Completion{Response: store.Response{
		Status: 201, Header: []store.HeaderField{{Name: "Content-Type", Value: "application/json"}}, Body: make([]byte, 200),
	}}
	if _, err := s.Complete(ctx, store.Claim{ID: id, Attempt: v.Record.Attempt}, done); err != nil {
		b.Fatal(err)
	}
	_, _ = rand.Read(r.Nonce[:])
	b.ReportAllocs()
	for b.Loop() {
		if v, err := s.Reserve(ctx, r); err != nil || v.Decision != store.DecisionReplay {
			b.Fatal(v.Decision, err)
		}
	}
}
