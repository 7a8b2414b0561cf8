package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/onceward/onceward/store"
)

// order is a request of 1 KiB as clients send it: members in the order of their meaning, nested objects, amounts, an
// escape or two.
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

// answer is what the handlers reply, and what the databases store: about 200 bytes of JSON.
const answer = `{"id":"pay_1MzxLq2eZvKYlo2CqQTfYQ4B","status":"succeeded","amount":18497,"currency":"EUR",` +
	`"reference":"ORD-2024-000184","customer":"cus_9s6XKzkNRiz8i3","created":"2024-05-02T10:11:12Z","livemode":true}`

// The rest of the answer.
const (
	contentType = "application/json"
	location    = "/payments/pay_1MzxLq2eZvKYlo2CqQTfYQ4B"
)

// newKey returns a random UUID: what clients send. Its quality does not matter here, but its cost would.
func newKey() string {
	var random [16]byte
	high, low := rand.Uint64(), rand.Uint64()
	for i := range 8 {
		random[i], random[8+i] = byte(high>>(8*i)), byte(low>>(8*i))
	}
	var text [36]byte
	hex.Encode(text[:8], random[:4])
	hex.Encode(text[9:13], random[4:6])
	hex.Encode(text[14:18], random[6:8])
	hex.Encode(text[19:23], random[8:10])
	hex.Encode(text[24:], random[10:])
	text[8], text[13], text[18], text[23] = '-', '-', '-', '-'
	return string(text[:])
}

// newOrderedKey returns a UUID of version 7, which begins with the time: what careful clients send.
func newOrderedKey() string {
	text := []byte(newKey())
	digits := fmt.Sprintf("%012x", time.Now().UnixMilli())
	copy(text, digits[:8])
	copy(text[9:], digits[8:])
	text[14], text[19] = '7', "89ab"[rand.N(4)]
	return string(text)
}

func newKeys(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = newKey()
	}
	return keys
}

// The work that a transaction protects.
const (
	createBusiness = `CREATE TABLE payment (
		id INTEGER PRIMARY KEY, reference TEXT NOT NULL, amount INTEGER NOT NULL, detail TEXT NOT NULL) STRICT`
	insertBusiness = `INSERT INTO payment (reference, amount, detail) VALUES (?, ?, ?)`
)

// businessRow is what is inserted: every contender writes the same.
var businessRow = []any{"ORD-2024-000184", 18497, "card tok_1MzxLq2eZvKYlo2CqQTfYQ4B"}

// reservation is what a handler of the HTTP side would ask for.
func reservation(key string) *store.Reservation {
	r := &store.Reservation{
		ID: store.ID{Scope: "alice", Key: key}, Operation: "POST /payments",
		Fingerprints: []store.Fingerprint{{Secret: 1, Rules: 1}}, Lease: 30 * time.Second, Retention: 24 * time.Hour,
	}
	copy(r.Fingerprints[0].Sum[:], key)
	copy(r.Nonce[:], key)
	return r
}

// completion is the answer that is stored.
func completion() store.Completion {
	return store.Completion{Response: store.Response{
		Status: http.StatusCreated,
		Header: []store.HeaderField{{Name: "Content-Type", Value: contentType}, {Name: "Location", Value: location}},
		Body:   []byte(answer),
	}}
}

func reserveAndComplete(ctx context.Context, s store.Store, key string) error {
	return reserveWorkComplete(ctx, s, key, func(context.Context) error { return nil })
}

// reserveWorkComplete does work between reserve and complete.
func reserveWorkComplete(ctx context.Context, s store.Store, key string, work func(context.Context) error) error {
	r := reservation(key)
	v, err := s.Reserve(ctx, r)
	if err := decided(v, err, store.DecisionExecute); err != nil {
		return err
	}
	if err := work(ctx); err != nil {
		return err
	}
	done := completion()
	_, err = s.Complete(ctx, store.Claim{ID: r.ID, Attempt: v.Record.Attempt}, &done)
	return err
}

// decided makes sure that the store did what is measured.
func decided(v store.Verdict, err error, want store.Decision) error {
	if err == nil && v.Decision != want {
		err = fmt.Errorf("the store decided %s instead of %s", v.Decision, want)
	}
	return err
}

// replayedKeys is among how many completed keys a replay chooses. Tests, which time nothing, make it few.
var replayedKeys = 4096

// fill completes keys, many at a time, so that they share commits.
func fill(ctx context.Context, store store.Store, keys []string) (err error) {
	var wg sync.WaitGroup
	var failed sync.Once
	for worker := range manyCallers {
		wg.Go(func() {
			for i := worker; i < len(keys); i += manyCallers {
				if failure := reserveAndComplete(ctx, store, keys[i]); failure != nil {
					failed.Do(func() { err = failure })
					return
				}
			}
		})
	}
	wg.Wait()
	return err
}

// turn is what callers did in some time.
type turn struct {
	done int
	// rate is how many operations they did in a second.
	rate float64
	// half is the time that half of the operations did not exceed.
	half time.Duration
}

// repeat lets callers do an operation for some time. None of them can be cancelled: a context that all share would be a
// lock that no server has.
func repeat(callers int, length time.Duration, operate func(context.Context) error) (t turn, err error) {
	var (
		wg    sync.WaitGroup
		once  sync.Once
		times = make([][]float64, callers)
		start = time.Now()
		over  = start.Add(length)
	)
	for caller := range callers {
		wg.Go(func() {
			for began := time.Now(); began.Before(over); {
				if failure := operate(context.Background()); failure != nil {
					once.Do(func() { err = failure })
					return
				}
				now := time.Now()
				times[caller] = append(times[caller], float64(now.Sub(began)))
				began = now
			}
		})
	}
	wg.Wait()
	took, all := time.Since(start), slices.Concat(times...)
	return turn{len(all), float64(len(all)) / took.Seconds(), time.Duration(median(all))}, err
}

// syncTime is what a durable write costs here: close to nothing means that the figures say little about a real disk.
func syncTime(dir string) (time.Duration, error) {
	file, err := os.CreateTemp(dir, "sync")
	if err != nil {
		return 0, err
	}
	defer func() { _ = file.Close() }()
	page := make([]byte, 4096)
	var times []float64
	for range 50 {
		started := time.Now()
		if _, err := file.WriteAt(page, 0); err != nil {
			return 0, err
		}
		if err := file.Sync(); err != nil {
			return 0, err
		}
		times = append(times, float64(time.Since(started)))
	}
	return time.Duration(median(times)), nil
}
