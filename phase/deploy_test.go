package phase_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/phase"
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
func selling[T any](b *bench, down *bool, amount func(*T) *int64, change func(*phase.Definition[T])) *phase.Operation[T] {
	d := phase.Definition[T]{
		Name: "POST /sales", Pause: quickly,
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

// TestARenamedFieldIsNeverZero: a version of the program that calls a carried field otherwise does not read it as zero. It leaves
// the operation to those who know it (scenario 44).
func TestARenamedFieldIsNeverZero(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, b *bench) {
		down := true
		old := newSale(b, &down)
		b.want(b.send(old.Handler(b.guard, empty[sale]), "k"), http.StatusConflict, "in-progress")
		b.await(b.record("k").LeaseUntil)
		down = false
		renamed := selling(b, &down, func(s *saleRenamed) *int64 { return &s.Amount }, nil)
		b.want(b.send(renamed.Handler(b.guard, empty[saleRenamed]), "k"), http.StatusConflict, "in-progress")
		b.want(b.send(old.Handler(b.guard, empty[sale]), "k"), http.StatusCreated, "1900")
		b.wantTrace("charge")
	})
}

// TestStepsThatAnOldNodeDoesNotKnow: an operation of a newer version, with steps at its end that an old node lacks, is not
// finished by the old node, nor made unknown, whether it has come to those steps or not.
func TestStepsThatAnOldNodeDoesNotKnow(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]string{"before them": "confirm", "at them": "mail"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onStores(t, func(t *testing.T, b *bench) {
				down := true
				step := func(name string) phase.Step[order] {
					return b.local(name, func(context.Context, *order) error {
						if down && name == fails {
							return errDown
						}
						return nil
					})
				}
				next := b.define(b.local("seat", takeSeat), step("confirm"), step("mail"), step("rate"))
				old := b.define(b.local("seat", takeSeat), step("confirm"))
				b.want(b.post(next, "k"), http.StatusConflict, "in-progress")
				b.await(b.record("k").LeaseUntil)
				down = false
				tries := b.record("k").Data
				for range 20 { // more often than the old node would have tries
					b.want(b.post(old, "k"), http.StatusConflict, "in-progress")
					b.once(b.resumer(phase.ResumerConfig{}, old))
				}
				if rec := b.record("k"); rec.State != onceward.StateInProgress || string(rec.Data) != string(tries) {
					t.Errorf("the record is %s with %s, want it as it was with %s", rec.State, rec.Data, tries)
				}
				if got := b.resume(next); got.Finished != 1 {
					t.Errorf("the new node's resumer reports %+v", got)
				}
				b.want(b.post(old, "k"), http.StatusCreated, "12A")
			})
		})
	}
}
