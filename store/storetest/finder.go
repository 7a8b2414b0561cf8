package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/store"
)

// testFinder checks that a record is found by its hash and its provider's id, in whatever way it got to its state.
func testFinder(t *testing.T, h Harness) {
	h.test(t, "by hash", func(e *env) {
		for _, f := range fixtures(h.probe) {
			built := id(f.name)
			f.build(e, []store.ID{built})
			e.wantFoundByHash(built)
		}
	})
	h.test(t, "by hash, among others", func(e *env) {
		for _, one := range ids(50) {
			e.own(one)
		}
		for _, one := range ids(50) {
			e.wantFoundByHash(one)
		}
	})
	h.test(t, "by no hash", func(e *env) {
		e.own(id("key"))
		for _, hash := range []string{
			id("other").Hash(), "", "key", id("key").Hash()[:16], id("key").Hash() + "00", strings.Repeat("x", 32),
		} {
			if _, err := e.finder().FindHash(e.ctx, hash); !errors.Is(err, store.ErrNotFound) {
				e.Errorf("FindHash(%q) gave the error %v, want ErrNotFound", hash, err)
			}
		}
	})
	for name, carry := range carriers(h.probe) {
		h.test(t, "by provider's id/"+name, func(e *env) {
			c := e.own(id("key"), resume)
			e.own(id("other"))
			carry(e, c, "ch_1")
			e.wantFoundBy("ch_1", c.ID)
		})
	}
	h.test(t, "by provider's id/any text", func(e *env) {
		for i, provider := range []string{"x", "\x00\xff\x07\x01", strings.Repeat("long ", 2000), "ch_1 ", "ch_1"} {
			c := e.own(id(fmt.Sprint(i)))
			e.completeWith(c, provider)
			e.wantFoundBy(provider, c.ID)
		}
		for _, provider := range []string{"", "ch", "ch_", "ch_11", "lease ran out"} {
			e.wantFoundBy(provider)
		}
	})
	h.test(t, "by provider's id/without one", func(e *env) {
		c := e.own(id("key"))
		e.must(e.Store.Checkpoint(e.ctx, c, store.Checkpoint{Point: "\x07\x04ch_1", Data: []byte("\x07\x04ch_1")}))
		e.wantFoundBy("ch_1")
		e.complete(c, "\x07\x04ch_1")
		e.wantFoundBy("ch_1")
	})
	h.test(t, "by provider's id/replaced", func(e *env) {
		c := e.own(id("key"))
		e.must(e.Store.Checkpoint(e.ctx, c, store.Checkpoint{Point: "charged", Data: []byte("\x07"), ProviderID: "ch_1"}))
		e.must(e.Store.Checkpoint(e.ctx, c, store.Checkpoint{ProviderID: "ch_2"}))
		e.wantFoundBy("ch_1")
		e.wantFoundBy("ch_2", c.ID)
		e.must(e.Store.Release(e.ctx, c, "not after all"))
		e.wantFoundBy("ch_2", c.ID)
		c = e.own(c.ID)
		e.wantFoundBy("ch_2", c.ID)
		e.completeWith(c, "ch_3")
		e.wantFoundBy("ch_2")
		e.wantFoundBy("ch_3", c.ID)
	})
	h.test(t, "by provider's id/shared", sharedProviderID)
	h.test(t, "by provider's id/expired", func(e *env) {
		c := e.own(id("key"), retain(e.brief()))
		e.completeWith(c, "ch_1")
		lapse(e)
		e.own(c.ID)
		e.wantFoundBy("ch_1")
	})
	if has[store.Buster](h.probe) {
		h.test(t, "removed", func(e *env) {
			c := e.own(id("key"))
			e.completeWith(c, "ch_1")
			e.bust(c.ID, false)
			e.wantFoundBy("ch_1")
			if _, err := e.finder().FindHash(e.ctx, c.Hash()); !errors.Is(err, store.ErrNotFound) {
				e.Errorf("FindHash of a record that was removed gave the error %v, want ErrNotFound", err)
			}
		})
	}
}

func (e *env) finder() store.Finder { return e.Store.(store.Finder) }

func (e *env) completeWith(c store.Claim, provider string) {
	e.Helper()
	done := answer("done")
	done.ProviderID = provider
	_, err := e.Store.Complete(e.ctx, c, done)
	e.must(err)
}

// carriers are the ways in which a record gets a provider's id.
func carriers(i Instance) map[string]func(e *env, c store.Claim, provider string) {
	all := map[string]func(e *env, c store.Claim, provider string){
		"complete": (*env).completeWith,
		"checkpoint": func(e *env, c store.Claim, provider string) {
			e.must(e.Store.Checkpoint(e.ctx, c, store.Checkpoint{Point: "charged", ProviderID: provider}))
		},
		"checkpoint, then complete": func(e *env, c store.Claim, provider string) {
			e.must(e.Store.Checkpoint(e.ctx, c, store.Checkpoint{ProviderID: provider, Data: []byte("carried")}))
			e.complete(c, "done")
		},
		"checkpoint, then abandon": func(e *env, c store.Claim, provider string) {
			e.must(e.Store.Checkpoint(e.ctx, c, store.Checkpoint{ProviderID: provider}))
			e.must(e.Store.Abandon(e.ctx, c, "who knows"))
		},
		"complete late": func(e *env, c store.Claim, provider string) {
			e.must(e.Store.Abandon(e.ctx, c, "who knows"))
			e.completeWith(c, provider)
		},
	}
	if has[store.Reconciler](i) {
		all["resolve completed"] = func(e *env, c store.Claim, provider string) {
			e.must(e.Store.Abandon(e.ctx, c, "who knows"))
			done := answer("learned")
			done.ProviderID = provider
			e.must(e.Store.(store.Reconciler).ResolveCompleted(e.ctx, c, done))
		}
		all["resolve step"] = func(e *env, c store.Claim, provider string) {
			e.must(e.Store.Abandon(e.ctx, c, "who knows"))
			p := store.Checkpoint{Point: "charged", ProviderID: provider}
			e.must(e.Store.(store.Reconciler).ResolveStep(e.ctx, c, p))
		}
	}
	if has[store.Transactor](i) {
		all["transaction"] = func(e *env, c store.Claim, provider string) {
			e.must(e.Store.Release(e.ctx, c, "another way"))
			_, err := e.transact(request(c.ID), func(context.Context, store.Verdict) store.Settlement {
				done := *answer("done")
				done.ProviderID = provider
				return store.Settlement{Action: store.TxCommit, Completion: done}
			})
			e.must(err)
		}
	}
	if has[store.TxCheckpointer](i) {
		all["checkpoint with work"] = func(e *env, c store.Claim, provider string) {
			e.must(e.Store.(store.TxCheckpointer).CheckpointTx(e.ctx, c, calm,
				func(context.Context) (store.Checkpoint, error) {
					return store.Checkpoint{Point: "charged", ProviderID: provider}, nil
				}))
		}
	}
	return all
}

// sharedProviderID checks that the newest of many records with one provider's id are found.
func sharedProviderID(e *env) {
	var want []store.ID
	for i := range store.MaxFound + 3 {
		c := e.own(id(fmt.Sprint(i)))
		e.pass(e.resolution())
		if i%2 == 0 {
			e.must(e.Store.Checkpoint(e.ctx, c, store.Checkpoint{ProviderID: "ch_1"}))
		} else {
			e.completeWith(c, "ch_1")
		}
		want = append([]store.ID{c.ID}, want...)
	}
	e.wantFoundBy("ch_1", want[:store.MaxFound]...)
}

// wantFoundByHash checks that a record is found by its hash, with the content that it has in a list.
func (e *env) wantFoundByHash(id store.ID) {
	e.Helper()
	want, err := e.find(id)
	e.must(err)
	got, err := e.finder().FindHash(e.ctx, strings.ToUpper(id.Hash()))
	if want.State == store.StateNone {
		if !errors.Is(err, store.ErrNotFound) {
			e.Errorf("FindHash found %v and the error %v of %q, which is not there", got.ID, err, id.Key)
		}
		return
	}
	if err != nil {
		e.Errorf("FindHash of %q: %v", id.Key, err)
		return
	}
	want.Data, want.Response.Body = nil, nil
	if diff := diffRecords(got, want, 0); diff != "" {
		e.Errorf("FindHash of %q returns a record without its body and data, but as it is: %s", id.Key, diff)
	}
}

// wantFoundBy checks which records have a provider's id, and their order.
func (e *env) wantFoundBy(provider string, want ...store.ID) {
	e.Helper()
	found, err := e.finder().FindProviderID(e.ctx, provider)
	e.must(err)
	if len(found) != len(want) {
		e.Errorf("FindProviderID(%.20q) found %d records, want %d", provider, len(found), len(want))
		return
	}
	for i := range want {
		rec := e.get(want[i])
		rec.Data, rec.Response.Body = nil, nil
		if diff := diffRecords(found[i], rec, 0); diff != "" {
			e.Errorf("FindProviderID(%.20q) returns, as number %d, a record without its body and data, but as it is: %s",
				provider, i, diff)
		}
	}
}

// retainerActions keep a record for longer, or for a shorter time than it is kept already.
func retainerActions() []action {
	var all []action
	for _, d := range []time.Duration{-calm, 0, time.Microsecond, calm, 10*calm + 1, 100 * 365 * 24 * time.Hour} {
		all = append(all, action{
			name: fmt.Sprint("retain for ", d), needed: has[store.Retainer],
			event: func(store.ID, *store.Record) store.Event { return store.Event{Kind: store.EventRetain, Lease: d} },
		})
	}
	return all
}

// testRetainer checks that a record that is kept for longer stays for that time, and stays unchanged.
func testRetainer(t *testing.T, h Harness) {
	h.test(t, "past its expiry", func(e *env) {
		c, first := e.retained()
		e.until(first)
		if has[store.Reaper](h.probe) {
			e.reap(everything, false)
		}
		e.wantDecision(request(c.ID), store.DecisionReplay, "what is kept for longer replays past its first expiry")
		if has[store.Finder](h.probe) {
			e.wantFoundBy("ch_1", c.ID)
		}
	})
	h.test(t, "no record", func(e *env) {
		_, err := e.Store.(store.Retainer).Retain(e.ctx, id("key"), calm)
		if !errors.Is(err, store.ErrNotFound) {
			e.Errorf("Retain of no record gave the error %v, want ErrNotFound", err)
		}
	})
}

// retained completes an operation and keeps its record for longer, before it has expired. It returns when the record
// would have expired.
func (e *env) retained() (c store.Claim, first time.Time) {
	e.Helper()
	for soon := e.brief(); ; soon *= 4 { // on a machine that stands still it may expire in between
		c = e.own(id("key"), retain(soon))
		e.completeWith(c, "ch_1")
		first = e.get(c.ID).ExpiresAt
		expires, err := e.Store.(store.Retainer).Retain(e.ctx, c.ID, calm)
		if errors.Is(err, store.ErrNotFound) && e.Advance == nil && soon < calm {
			continue
		}
		e.must(err)
		if !expires.After(first) {
			e.Errorf("a record that expires at %s is kept until %s", first, expires)
		}
		return c, first
	}
}
