package unknown_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// sale is the data of an operation before a deploy, and saleRenamed that of the version behind it.
type (
	sale struct {
		Price  int64  `json:"price"`
		Charge string `json:"charge,omitempty"`
	}
	saleRenamed struct {
		Amount int64  `json:"amount"`
		Charge string `json:"charge,omitempty"`
	}
)

// selling is an operation that is lost behind its first step, as long as the provider is down.
func selling[T any](
	b *bench, down *bool, amount func(*T) *int64, change func(*phase.Definition[T]),
) *phase.Operation[T] {
	d := phase.Definition[T]{
		Name: "POST /sales", MinBackoff: quickly, Options: leased,
		Steps: []phase.Step[T]{
			phase.Local("price", func(_ context.Context, data *T) error {
				*amount(data) = 1900
				return nil
			}),
			phase.External("charge", func(_ context.Context, _ string, data *T) error {
				if *down {
					return onceward.NotExecuted(errDown)
				}
				if *amount(data) != 1900 {
					b.Errorf("%d was charged, want 1900", *amount(data))
				}
				b.did("charge")
				return nil
			}),
		},
		Answer: func(data *T) phase.Answer { return phase.JSON(http.StatusCreated, data) },
	}
	if change != nil {
		change(&d)
	}
	return phase.Must(phase.New(d))
}

func newSale(b *bench, down *bool) *phase.Operation[sale] {
	return selling(b, down, func(s *sale) *int64 { return &s.Price }, nil)
}

func empty[T any](*http.Request) (*T, error) { return new(T), nil }

// TestARenamedFieldIsNeverZero: a version of the program that calls a carried field otherwise does not read it as zero.
// It leaves the operation to those who know it (scenario 44).
func TestARenamedFieldIsNeverZero(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, b *bench) {
		down := true
		old := newSale(b, &down)
		b.want(b.send(old.Handler(b.guard, empty[sale]), "k"), http.StatusConflict, "in-progress")
		b.leapTo(b.record("k").LeaseUntil)
		down = false
		renamed := selling(b, &down, func(s *saleRenamed) *int64 { return &s.Amount }, nil)
		b.want(b.send(renamed.Handler(b.guard, empty[saleRenamed]), "k"), http.StatusConflict, "in-progress")
		b.want(b.send(old.Handler(b.guard, empty[sale]), "k"), http.StatusCreated, "1900")
		b.wantTrace("charge")
	})
}

// TestStepsThatAnOldNodeDoesNotKnow: an operation of a newer version, with steps at its end that an old node lacks, is
// not finished by the old node, nor made unknown, whether it has come to those steps or not.
func TestStepsThatAnOldNodeDoesNotKnow(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]string{"before them": "confirm", "at them": "mail"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onStores(t, func(t *testing.T, b *bench) {
				down := true
				step := func(name string) phase.Step[ticket] {
					return b.local(name, func(context.Context, *ticket) error {
						if down && name == fails {
							return errDown
						}
						return nil
					})
				}
				next := b.define(b.local("seat", takeSeat), step("confirm"), step("mail"), step("rate"))
				old := b.define(b.local("seat", takeSeat), step("confirm"))
				b.want(b.post(next, "k"), http.StatusConflict, "in-progress")
				b.leapTo(b.record("k").LeaseUntil)
				down = false
				before := b.record("k").Data
				for range 20 { // more often than the old node would attempt it
					b.want(b.post(old, "k"), http.StatusConflict, "in-progress")
					b.once(b.resumer(phase.ResumerConfig{}, old))
				}
				if rec := b.record("k"); rec.State != store.StateInProgress || string(rec.Data) != string(before) {
					t.Errorf("the record is %s with %s, want it as it was with %s", rec.State, rec.Data, before)
				}
				if got := b.resume(next); got.Finished != 1 {
					t.Errorf("the new node's resumer reports %+v", got)
				}
				b.want(b.post(old, "k"), http.StatusCreated, "12A")
			})
		})
	}
}

// TestARenamedFieldIsMigrated: a version that says so, and how, goes on with what the old one has stored, and the old
// one does not touch it from then on. What the new one has stored the old one leaves alone.
func TestARenamedFieldIsMigrated(t *testing.T) {
	t.Parallel()
	rename := func(d *phase.Definition[saleRenamed]) {
		d.Version = 1
		d.Migrate = func(from int, data json.RawMessage) (json.RawMessage, error) {
			if from != 0 {
				return nil, fmt.Errorf("version %d", from)
			}
			return []byte(strings.Replace(string(data), `"price"`, `"amount"`, 1)), nil
		}
	}
	onStores(t, func(t *testing.T, b *bench) {
		down := true
		old := newSale(b, &down).Handler(b.guard, empty[sale])
		renamed := selling(b, &down, func(s *saleRenamed) *int64 { return &s.Amount }, rename)
		next := renamed.Handler(b.guard, empty[saleRenamed])
		for key, first := range map[string]http.Handler{"old": old, "new": next} {
			b.want(b.send(first, key), http.StatusConflict, "in-progress")
			b.leapTo(b.record(key).LeaseUntil)
			b.want(b.send(next, key), http.StatusConflict, "in-progress")
			b.leapTo(b.record(key).LeaseUntil)
			b.want(b.send(old, key), http.StatusConflict, "in-progress")
			data := string(b.record(key).Data)
			if !strings.Contains(data, `"amount":1900`) || !strings.Contains(data, `"attempts":2`) {
				t.Errorf("%s: the record holds %s", key, data)
			}
		}
		down = false
		for _, key := range []string{"old", "new"} {
			b.want(b.send(next, key), http.StatusCreated, `"amount":1900`)
		}
		b.wantTrace("charge charge")
	})
}

// TestAMigrationThatFails, or panics, leaves the operation as it was.
func TestAMigrationThatFails(t *testing.T) {
	t.Parallel()
	for name, migrate := range map[string]func(int, json.RawMessage) (json.RawMessage, error){
		"an error":      func(int, json.RawMessage) (json.RawMessage, error) { return nil, errDown },
		"a panic":       func(int, json.RawMessage) (json.RawMessage, error) { panic("a nil map") },
		"the same data": func(_ int, data json.RawMessage) (json.RawMessage, error) { return data, nil },
		"no JSON":       func(int, json.RawMessage) (json.RawMessage, error) { return []byte("{"), nil },
		"nothing":       func(int, json.RawMessage) (json.RawMessage, error) { return nil, nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onStores(t, func(t *testing.T, b *bench) {
				down := true
				old := newSale(b, &down).Handler(b.guard, empty[sale])
				b.want(b.send(old, "k"), http.StatusConflict, "in-progress")
				b.leapTo(b.record("k").LeaseUntil)
				before := b.record("k")
				down = false
				o := selling(b, &down, func(s *saleRenamed) *int64 { return &s.Amount }, func(d *phase.Definition[saleRenamed]) {
					d.Version, d.Migrate = 1, migrate
				})
				b.want(b.send(o.Handler(b.guard, empty[saleRenamed]), "k"), http.StatusConflict, "in-progress")
				if got := b.once(b.resumer(phase.ResumerConfig{}, o)); got != (phase.Report{Skipped: 1}) {
					t.Errorf("the resumer reports %+v", got)
				}
				if rec := b.record("k"); rec.State != store.StateInProgress || string(rec.Data) != string(before.Data) {
					t.Errorf("the record is %s with %s, want %s", rec.State, rec.Data, before.Data)
				}
				b.want(b.send(old, "k"), http.StatusCreated, "1900")
			})
		})
	}
}

// TestAVersionChangesSteps: with a larger version a definition may change the steps that an operation has not come to.
func TestAVersionChangesSteps(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, b *bench) {
		failing := b.local("confirm", func(context.Context, *ticket) error { return errDown })
		old := b.define(b.local("seat", takeSeat), failing, b.local("mail", confirm))
		b.want(b.post(old, "k"), http.StatusConflict, "in-progress")
		b.leapTo(b.record("k").LeaseUntil)
		d := old.Definition
		d.Version = 1
		d.Steps = []phase.Step[ticket]{b.local("seat", takeSeat), b.local("insure", confirm), b.local("confirm", confirm)}
		next := phase.Must(phase.New(d))
		d.Steps = []phase.Step[ticket]{b.local("insure", confirm), b.local("seat", takeSeat)} // what is done comes later
		b.wantLeftAlone(phase.Must(phase.New(d)), "have changed under a stored operation")
		b.want(b.post(next, "k"), http.StatusCreated, "12A")
		b.wantTrace("seat confirm insure confirm")
	})
}

// TestLenientData is for those who want what encoding/json does.
func TestLenientData(t *testing.T) {
	t.Parallel()
	clock := new(leapingClock)
	b := newBench(t, memory.New(memory.WithClock(clock.now)), clock)
	down := true
	b.want(b.send(newSale(b, &down).Handler(b.guard, empty[sale]), "k"), http.StatusConflict, "in-progress")
	b.leapTo(b.record("k").LeaseUntil)
	down = false
	lenient := selling(b, &down, func(s *saleRenamed) *int64 {
		s.Amount = 1900
		return &s.Amount
	}, func(d *phase.Definition[saleRenamed]) { d.LenientData = true })
	b.want(b.send(lenient.Handler(b.guard, empty[saleRenamed]), "k"), http.StatusCreated, `"amount":1900`)
}

// TestARollingDeploy has nodes of two versions with their resumers, and clients that come to either. Every operation
// ends, with the steps of the version that has gone on with it last, and is charged once (scenario 44).
func TestARollingDeploy(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, b *bench) {
		const operations = 12
		var mu sync.Mutex
		failures, charges := map[string]int{}, map[string]int{}
		step := func(ctx context.Context, amount int64) error {
			mu.Lock()
			defer mu.Unlock()
			key := onceward.FromContext(ctx).Key()
			if failures[key]++; failures[key] < 4 { // so that it goes from hand to hand
				return onceward.NotExecuted(errDown)
			}
			if charges[key]++; amount != 1900 {
				t.Errorf("%s: %d was charged", key, amount)
			}
			return nil
		}
		old := phase.Must(phase.New(phase.Definition[sale]{
			Name: "POST /sales", MinBackoff: quickly, Options: leased,
			Answer: func(s *sale) phase.Answer { return phase.JSON(http.StatusCreated, s) },
			Steps: []phase.Step[sale]{
				phase.Local("price", func(_ context.Context, s *sale) error { s.Price = 1900; return nil }),
				phase.External("charge", func(ctx context.Context, _ string, s *sale) error { return step(ctx, s.Price) }),
			},
		}))
		next := phase.Must(phase.New(phase.Definition[saleRenamed]{
			Name: "POST /sales", MinBackoff: quickly, Version: 1, Options: leased,
			Answer: func(s *saleRenamed) phase.Answer { return phase.JSON(http.StatusCreated, s) },
			Migrate: func(_ int, data json.RawMessage) (json.RawMessage, error) {
				return []byte(strings.Replace(string(data), `"price"`, `"amount"`, 1)), nil
			},
			Steps: []phase.Step[saleRenamed]{
				phase.Local("price", func(_ context.Context, s *saleRenamed) error { s.Amount = 1900; return nil }),
				phase.External("charge", func(ctx context.Context, _ string, s *saleRenamed) error { return step(ctx, s.Amount) }),
				phase.Local("mail", func(context.Context, *saleRenamed) error { return nil }),
			},
		}))
		other := b.node(t)
		nodes := []http.Handler{old.Handler(b.guard, empty[sale]), next.Handler(other.guard, empty[saleRenamed])}
		resumers := []*phase.Resumer{b.resumer(phase.ResumerConfig{}, old), b.resumer(phase.ResumerConfig{}, next)}
		for round, left := 0, operations; left > 0; round++ {
			left = operations
			for i := range operations {
				if b.send(nodes[(i+round)%2], fmt.Sprint("k", i)).Code == http.StatusCreated {
					left--
				}
			}
			b.once(resumers[round%2])
		}
		for i := range operations {
			if key := fmt.Sprint("k", i); charges[key] != 1 {
				t.Errorf("%s was charged %d times", key, charges[key])
			}
		}
	})
}

// TestANewerVersion: data that looks the same may mean something else, such as another unit. The version alone says so.
func TestANewerVersion(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, b *bench) {
		failing := true
		old := b.define(b.local("seat", takeSeat), b.local("confirm", func(context.Context, *ticket) error {
			if failing {
				return errDown
			}
			return nil
		}))
		d := old.Definition
		d.Version = 1
		next := phase.Must(phase.New(d))
		b.want(b.post(next, "k"), http.StatusConflict, "in-progress")
		b.leapTo(b.record("k").LeaseUntil)
		b.wantLeftAlone(old, "is of version 1, the definition of version 0")
		rec := b.record("k")
		var changed *phase.ChangedError
		if _, err := old.InDoubt(b.guard, &rec); !errors.As(err, &changed) || changed.StoredVersion != 1 {
			t.Errorf("a resolver of the old version gets %v", err)
		}
		failing = false
		b.want(b.post(next, "k"), http.StatusCreated, "12A")
	})
}

// TestChangedSteps: a program leaves an operation alone whose stored steps it does not know, and says so. Those that
// know them go on.
func TestChangedSteps(t *testing.T) {
	t.Parallel()
	for name, changed := range map[string]func(b *bench) *phase.Operation[ticket]{
		"renamed": func(b *bench) *phase.Operation[ticket] { return b.define(b.local("place", takeSeat)) },
		"reordered": func(b *bench) *phase.Operation[ticket] {
			return b.define(b.local("confirm", confirm), b.local("seat", takeSeat))
		},
		"removed at the end": func(b *bench) *phase.Operation[ticket] { return b.define(b.local("seat", takeSeat)) },
		"one put between": func(b *bench) *phase.Operation[ticket] {
			return b.define(b.local("seat", takeSeat), b.local("insure", confirm), b.local("confirm", confirm))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onStores(t, func(t *testing.T, b *bench) {
				failing := true
				known := b.define(b.local("seat", takeSeat), b.local("confirm", func(context.Context, *ticket) error {
					if failing {
						return errDown
					}
					return nil
				}))
				b.want(b.post(known, "k"), http.StatusConflict, "in-progress")
				b.leapTo(b.record("k").LeaseUntil)
				b.wantLeftAlone(changed(b), "have changed under a stored operation")
				failing = false
				b.want(b.post(known, "k"), http.StatusCreated, "12A")
				b.wantTrace("seat confirm confirm")
			})
		})
	}
}

// wantLeftAlone checks that neither a retry nor a resumer with this definition touches the operation k.
func (b *bench) wantLeftAlone(o *phase.Operation[ticket], why string) {
	b.Helper()
	before := b.record("k")
	b.want(b.post(o, "k"), http.StatusConflict, "in-progress")
	var log lockedBuffer
	resumer := b.resumer(phase.ResumerConfig{Logger: slog.New(slog.NewTextHandler(&log, nil))}, o)
	if got := b.once(resumer); got != (phase.Report{Skipped: 1}) || !strings.Contains(log.String(), why) {
		b.Errorf("the resumer reports %+v, and logs %s", got, log.String())
	}
	rec := b.record("k")
	if rec.State != store.StateInProgress || string(rec.Data) != string(before.Data) || rec.Point != before.Point {
		b.Errorf("the record is %s at %q with %s, want it as it was with %s", rec.State, rec.Point, rec.Data, before.Data)
	}
}

// TestAddedSteps lets a new version of the program add steps at the end.
func TestAddedSteps(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, b *bench) {
		old := b.define(b.local("seat", takeSeat), b.local("confirm", func(context.Context, *ticket) error { return errDown }))
		b.want(b.post(old, "k"), http.StatusConflict, "in-progress")
		b.leapTo(b.record("k").LeaseUntil)
		next := b.define(b.local("seat", takeSeat), b.local("confirm", confirm), b.local("mail", confirm))
		b.want(b.post(next, "k"), http.StatusCreated, "12A")
		b.wantTrace("seat confirm confirm mail")
	})
}
