package canon_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/canon"
)

// order is a document of about 1 KiB as clients send it: members in the order
// of their meaning, nested objects, amounts, an escape or two.
const order = `{"reference":"ORD-2024-000184","customer":{"id":"cus_9s6XKzkNRiz8i3","name":"Zo\u00eb Brontë",` +
	`"email":"zoe@example.com","phone":"+44 20 7946 0958","vip":false},"currency":"EUR","total":184.97,` +
	`"tax":30.83,"discount":0.5,"lines":[{"sku":"KB-87-ISO","title":"Keyboard, 87 keys","quantity":1,` +
	`"price":129.99,"gift":false},{"sku":"MS-02","title":"Mouse \"silent\"","quantity":2,"price":19.99,` +
	`"gift":true},{"sku":"CB-C-200","title":"Cable USB-C 2m","quantity":1,"price":15,"gift":false}],` +
	`"shipping":{"method":"express","street":"12 Haworth Rd\nFlat 3","city":"Keighley","postcode":"BD22 8DU",` +
	`"country":"GB","instructions":null,"window":{"from":"2024-05-03T09:00:00Z","to":"2024-05-03T12:00:00Z"}},` +
	`"payment":{"method":"card","token":"tok_1MzxLq2eZvKYlo2CqQTfYQ4B","capture":true,"amount":18497},` +
	`"metadata":{"source":"web","campaign":"spring-2024","session":"0f8fad5b-d9cb-469f-a165-70867728950e",` +
	`"ip":"203.0.113.42","attempt":1},"notes":"Leave with the neighbour if nobody is in."}`

const small = `{"to":"acct_19GxrK2eZvKYlo2C","amount":1250,"currency":"eur","memo":"rent for May","urgent":false}`

func documents() map[string][]byte {
	sorted, err := canon.Append(nil, []byte(order), nil)
	if err != nil {
		panic(err)
	}
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, []byte(order), "", "  "); err != nil {
		panic(err)
	}
	return map[string][]byte{
		"small":  []byte(small),
		"order":  []byte(order),
		"sorted": sorted,
		"pretty": pretty.Bytes(),
		"large":  []byte("[" + strings.Repeat(order+",", 99) + order + "]"),
	}
}

func benchmarkDocuments(b *testing.B, f func(b *testing.B, doc []byte)) {
	docs := documents()
	for _, name := range []string{"small", "order", "sorted", "pretty", "large"} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(docs[name])))
			b.ReportAllocs()
			f(b, docs[name])
		})
	}
}

func BenchmarkAppend(b *testing.B) {
	benchmarkDocuments(b, func(b *testing.B, doc []byte) {
		var dst []byte
		for b.Loop() {
			dst, _ = canon.Append(dst[:0], doc, nil)
		}
	})
}

func BenchmarkAppendSelection(b *testing.B) {
	sel, err := canon.Select(nil, []string{"/metadata/session", "/lines/1/gift"})
	if err != nil {
		b.Fatal(err)
	}
	benchmarkDocuments(b, func(b *testing.B, doc []byte) {
		var dst []byte
		for b.Loop() {
			dst, _ = canon.Append(dst[:0], doc, sel)
		}
	})
}

// BenchmarkAppendPlusSHA256 is the cost of a fingerprint, to be compared with
// BenchmarkValidPlusSHA256.
func BenchmarkAppendPlusSHA256(b *testing.B) {
	benchmarkDocuments(b, func(b *testing.B, doc []byte) {
		var dst []byte
		for b.Loop() {
			dst, _ = canon.Append(dst[:0], doc, nil)
			sha256.Sum256(dst)
		}
	})
}

func BenchmarkValidPlusSHA256(b *testing.B) {
	benchmarkDocuments(b, func(b *testing.B, doc []byte) {
		for b.Loop() {
			json.Valid(doc)
			sha256.Sum256(doc)
		}
	})
}

// BenchmarkRatio reports how many times the cost of json.Valid and SHA-256 a
// fingerprint costs. It takes turns and keeps the best of each, because a busy
// machine slows one benchmark down and not the next.
func BenchmarkRatio(b *testing.B) {
	benchmarkDocuments(b, func(b *testing.B, doc []byte) {
		var dst []byte
		fingerprint, valid := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
		for b.Loop() {
			fingerprint = min(fingerprint, timed(func() {
				dst, _ = canon.Append(dst[:0], doc, nil)
				sha256.Sum256(dst)
			}))
			valid = min(valid, timed(func() {
				json.Valid(doc)
				sha256.Sum256(doc)
			}))
		}
		b.ReportMetric(float64(fingerprint)/float64(valid), "ratio")
	})
}

func timed(f func()) time.Duration {
	start := time.Now()
	for range 10 {
		f()
	}
	return time.Since(start)
}
