package sealed

import (
	"bytes"
	"testing"

	"github.com/onceward/onceward/store"
)

// BenchmarkAnswer seals and opens an answer: a small one, and one of 4 KiB that is compressed.
func BenchmarkAnswer(b *testing.B) {
	s, err := New(&evidenceHolder{}, Config{Keys: []Key{{ID: 1, Secret: bytes.Repeat([]byte{1}, secretSize)}}})
	if err != nil {
		b.Fatal(err)
	}
	p := place{claim: goldenClaim, inTx: true}
	for name, body := range map[string][]byte{
		"small": []byte(`{"id":"pay_1","status":"succeeded"}`),
		"4KiB":  bytes.Repeat([]byte(`{"id":"pay_1","status":"succeeded"}`), 117),
	} {
		plain := store.Response{
			Status: 201, Header: []store.HeaderField{{Name: "Content-Type", Value: "application/json"}}, Body: body,
		}
		sealed, err := s.sealResponse(p, plain)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name+"/seal", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.sealResponse(p, plain); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/open", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r := sealed
				if err := s.openResponse(p, &r, false); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
