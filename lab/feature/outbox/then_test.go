package outbox_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/outbox"
)

// TestProviderID: what the receiver called the effect is kept with the message.
func TestProviderID(t *testing.T) {
	inTime(t, func(b *bench) {
		id := b.add(about("", "m"))[0]
		b.run(b.worker(b.store, outbox.Route{Handler: func(context.Context, *outbox.Delivery) (outbox.Result, error) {
			return outbox.Result{ProviderID: "ch_1"}, nil
		}}), outbox.Report{Delivered: 1})
		if e := b.entry(id); e.State != outbox.StateDone || e.ProviderID != "ch_1" {
			b.Errorf("it is %s as %q", e.State, e.ProviderID)
		}
	})
}

// TestProviderIDAtOnce: a handler that does more afterwards has recorded it, and the next delivery finds it.
func TestProviderIDAtOnce(t *testing.T) {
	inTime(t, func(b *bench) {
		id := b.add(about("", "m"))[0]
		w := b.worker(b.store, outbox.Route{Handler: func(ctx context.Context, d *outbox.Delivery) (outbox.Result, error) {
			if d.ProviderID != "" {
				return outbox.Result{}, nil
			}
			if err := d.RecordProviderID(ctx, "ch_1"); err != nil || d.ProviderID != "ch_1" {
				b.Errorf("the delivery knows it as %q, %v", d.ProviderID, err)
			}
			return outbox.Result{}, errDown
		}})
		b.run(w, outbox.Report{Retried: 1})
		time.Sleep(time.Second)
		b.run(w, outbox.Report{Delivered: 1})
		if e := b.entry(id); e.ProviderID != "ch_1" || e.Attempts != 2 {
			b.Errorf("it is %q after %d tries", e.ProviderID, e.Attempts)
		}
	})
}

// TestADeliveryWithoutAWorker is one of a handler's own tests: it is alive, and there is nowhere to record.
func TestADeliveryWithoutAWorker(t *testing.T) {
	t.Parallel()
	d := new(outbox.Delivery)
	if err := d.CheckLease(); err != nil {
		t.Errorf("it is not alive: %v", err)
	}
	for _, err := range []error{d.RecordProviderID(t.Context(), "ch_1"), d.RecordAnswer(t.Context(), []byte("paid"))} {
		if err == nil || err.Error() != "outbox: this delivery is not a worker's" {
			t.Errorf("recording came to %v", err)
		}
	}
}

// TestThenIsAtomic: what Then writes and that the message is done are seen together.
func TestThenIsAtomic(t *testing.T) {
	inTime(t, func(b *bench) {
		b.createBook()
		id := b.add(about("", "m"))
		b.run(b.worker(b.store, outbox.Route{Handler: func(context.Context, *outbox.Delivery) (outbox.Result, error) {
			return outbox.Result{ProviderID: "ch_1", Then: func(ctx context.Context) error {
				err := write(ctx, "paid")
				b.wantLines("before the commit", "")
				b.wantStates("before the commit", id, outbox.StateLeased)
				if got := b.entry(id[0]).ProviderID; got != "ch_1" {
					b.Errorf("O3: the receiver's id is %q before the message is done", got)
				}
				return err
			}}, nil
		}}), outbox.Report{Delivered: 1})
		b.wantLines("after the commit", "paid")
		b.wantStates("after the commit", id, outbox.StateDone)
	})
}

// TestThenFails: nothing of it is written, and the next delivery knows what the receiver called the effect.
func TestThenFails(t *testing.T) {
	inTime(t, func(b *bench) {
		b.createBook()
		id := b.add(about("", "m"))
		var had []string
		failing := true
		w := b.worker(b.store, outbox.Route{Handler: func(_ context.Context, d *outbox.Delivery) (outbox.Result, error) {
			had = append(had, d.ProviderID)
			return outbox.Result{ProviderID: "ch_1", Then: func(ctx context.Context) error {
				err := write(ctx, "paid")
				if failing {
					return errors.Join(err, errDown)
				}
				return err
			}}, nil
		}})
		b.run(w, outbox.Report{Retried: 1})
		b.wantLines("undone", "")
		b.wantStates("undone", id, outbox.StateReady)
		failing = false
		time.Sleep(time.Second)
		b.run(w, outbox.Report{Delivered: 1})
		b.wantLines("done", "paid")
		if len(had) != 2 || had[0] != "" || had[1] != "ch_1" {
			b.Errorf("the deliveries had the ids %q at hand", had)
		}
	})
}

// TestThenPanics: that too is a failure of this message alone.
func TestThenPanics(t *testing.T) {
	inTime(t, func(b *bench) {
		b.createBook()
		ids := b.add(about("", "m"), about("", "other"))
		b.run(b.worker(b.store, outbox.Route{Handler: func(_ context.Context, d *outbox.Delivery) (outbox.Result, error) {
			if d.Type == "other" {
				return outbox.Result{}, nil
			}
			return outbox.Result{Then: func(ctx context.Context) error {
				if err := write(ctx, "paid"); err != nil {
					return err
				}
				panic("a nil map")
			}}, nil
		}}), outbox.Report{Delivered: 1, Retried: 1})
		b.wantLines("undone", "")
		b.wantStates("one message", ids, outbox.StateReady, outbox.StateDone)
		if e := b.entry(ids[0]); e.LastError != "Result.Then panicked: a nil map" {
			b.Errorf("the reason is %q", e.LastError)
		}
	})
}

// TestThenAddsAMessage: what follows is added with the end of what it follows, and delivered in the same run.
func TestThenAddsAMessage(t *testing.T) {
	inTime(t, func(b *bench) {
		mail := &clerk{does: func(_ context.Context, d *outbox.Delivery) (outbox.Result, error) {
			if d.Type != "charge" {
				return outbox.Result{}, nil
			}
			return outbox.Result{Then: func(ctx context.Context) error {
				_, err := b.box.Add(ctx, onceward.Tx(ctx), about("a", "receipt"))
				return err
			}}, nil
		}}
		b.add(about("a", "charge"), about("a", "next"))
		b.run(b.worker(b.store, outbox.Route{Handler: mail.deliver}), outbox.Report{Delivered: 3})
		mail.want(b, "followed", "charge next receipt")
	})
}

// TestThenOfADeadLetter: what Then writes and that the message is a dead letter are seen together. If Then fails, the
// message is delivered again, and not forgotten.
func TestThenOfADeadLetter(t *testing.T) {
	for name, c := range map[string]struct {
		aggregate string
		want      outbox.State
	}{"free": {"", outbox.StateDead}, "holding": {"x", outbox.StateHolding}} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(b *bench) {
				b.createBook()
				id := b.add(about(c.aggregate, "m"))
				failing := true
				events := new(journal)
				w := b.worker(b.store, outbox.Route{
					BlockOnDeadLetter: true,
					Handler: func(context.Context, *outbox.Delivery) (outbox.Result, error) {
						return outbox.Result{Then: func(ctx context.Context) error {
							err := write(ctx, "refused")
							if failing {
								return errors.Join(err, errDown)
							}
							return err
						}}, outbox.Permanent(errors.New("no such account"))
					},
				}, watched(events))
				b.run(w, outbox.Report{Retried: 1})
				b.wantLines("undone", "")
				b.wantStates("undone", id, outbox.StateReady)
				failing = false
				time.Sleep(time.Second)
				b.run(w, outbox.Report{DeadLetters: 1})
				b.wantLines("done", "refused")
				b.wantStates("done", id, c.want)
				if e := b.entry(id[0]); e.LastError != "outbox: the message cannot be delivered: no such account" {
					b.Errorf("the last error is %q", e.LastError)
				}
				events.want(b, "M1", "retry, dead letter")
			})
		})
	}
}

// TestAnswerIsKept for the next delivery, and for who lists the message; a person's answer takes its place.
func TestAnswerIsKept(t *testing.T) {
	inTime(t, func(b *bench) {
		b.createBook()
		id := b.add(about("", "m"))
		var had []string
		w := b.worker(b.store, outbox.Route{Handler: func(ctx context.Context, d *outbox.Delivery) (outbox.Result, error) {
			had = append(had, string(d.Answer))
			if age := d.Now().Sub(d.ClaimedAt); age < 0 || age > time.Minute || d.ClaimedAt.Before(d.CreatedAt) {
				b.Errorf("it was claimed at %s, and now is %s", d.ClaimedAt, d.Now())
			}
			if len(had) == 3 {
				return outbox.Result{}, nil
			}
			if err := d.RecordAnswer(ctx, make([]byte, outbox.MaxAnswer+1)); err == nil {
				b.Error("an answer without a limit is kept")
			}
			if err := d.RecordAnswer(ctx, []byte("accepted")); err != nil || string(d.Answer) != "accepted" {
				b.Errorf("recording came to %v, and the answer at hand is %q", err, d.Answer)
			}
			if len(had) == 1 {
				return outbox.Result{}, errDown
			}
			return outbox.Result{}, outbox.Permanent(errDown)
		}})
		b.run(w, outbox.Report{Retried: 1})
		time.Sleep(time.Second)
		b.run(w, outbox.Report{DeadLetters: 1})
		operator, err := outbox.NewOperator(b.store)
		b.must(err)
		if err := operator.Answer(b.Context(), "ann", "asked", id[0], make([]byte, outbox.MaxAnswer+1)); err == nil {
			b.Error("an answer without a limit is taken")
		}
		b.must(operator.Answer(b.Context(), "ann", "asked", id[0], []byte("paid")))
		b.run(w, outbox.Report{Delivered: 1})
		if got := strings.Join(had, ","); got != ",accepted,paid" || string(b.entry(id[0]).Answer) != "paid" {
			b.Errorf("the deliveries had %q, and %q is kept", got, b.entry(id[0]).Answer)
		}
	})
}
