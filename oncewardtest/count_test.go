package oncewardtest_test

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/oncewardtest"
	"github.com/onceward/onceward/store/sqlite"
)

// shelf is a world in which things are taken away: seats that are free, and what is left on an account.
func shelf(
	handle func(w *world) http.HandlerFunc, mode onceward.Option,
) func(oncewardtest.TestingT) oncewardtest.Config {
	return func(t oncewardtest.TestingT) oncewardtest.Config {
		store, clock := oncewardtest.NewStore(t, table,
			`CREATE TABLE free (seat INTEGER)`, `INSERT INTO free VALUES (1), (2)`,
			`CREATE TABLE account (balance INTEGER)`, `INSERT INTO account VALUES (9000)`)
		w := &world{store, oncewardtest.NewProvider(t, oncewardtest.ProviderConfig{Dedups: true})}
		effects := oncewardtest.Rows(store.DB(), "free", "payment")
		effects["balance"] = func() (n int) {
			if err := store.DB().QueryRow(`SELECT balance FROM account`).Scan(&n); err != nil {
				t.Fatalf("%v", err)
			}
			return n
		}
		return oncewardtest.Config{
			Store: store, Clock: clock, Effects: effects, Providers: []*oncewardtest.Provider{w.provider},
			Service: func(guard *onceward.Guard) http.Handler {
				mux := http.NewServeMux()
				mux.Handle("POST /payments", guard.Handler(handle(w), mode))
				return mux
			},
		}
	}
}

// takes runs a statement in a transaction of its own.
func takes(ctx context.Context, s *sqlite.Store, statement string) error {
	return s.Update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, statement)
		return err
	})
}

// TestCountsWhatIsTakenAway: an effect may lower its number, and that of another one may rise as much.
func TestCountsWhatIsTakenAway(t *testing.T) {
	t.Parallel()
	const take = `UPDATE account SET balance = balance - 1200`
	t.Run("a row that moves", func(t *testing.T) {
		t.Parallel()
		oncewardtest.Check(t, shelf(func(*world) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				_, err := onceward.Tx(r.Context()).ExecContext(r.Context(), `DELETE FROM free WHERE seat = 1`)
				answer(w, errors.Join(err, insert(r.Context())))
			}
		}, onceward.Transactional()), payment)
	})
	t.Run("an amount that may not have been taken", func(t *testing.T) {
		t.Parallel()
		oncewardtest.Check(t, shelf(func(world *world) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				err := world.charge(r.Context(), onceward.FromContext(r.Context()).DownstreamKey("charge"), `{}`)
				if err == nil {
					err = takes(r.Context(), world.store, take)
				}
				answer(w, err)
			}
		}, onceward.Reserved(onceward.FailureUnknown)), payment)
	})
	t.Run("an amount that is taken twice", func(t *testing.T) {
		t.Parallel()
		wantKinds(t, oncewardtest.Find(t, shelf(func(world *world) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				err := takes(r.Context(), world.store, take)
				if err == nil {
					err = world.charge(r.Context(), onceward.FromContext(r.Context()).DownstreamKey("charge"), `{}`)
				}
				answer(w, err)
			}
		}, onceward.Reserved(onceward.FailureRetry)), payment), oncewardtest.KindTwice)
	})
	t.Run("an amount that is not taken", func(t *testing.T) {
		t.Parallel()
		wantKinds(t, oncewardtest.Find(t, shelf(func(world *world) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				_ = takes(r.Context(), world.store, take)
				answer(w, nil)
			}
		}, onceward.Reserved(onceward.FailureUnknown)), payment), oncewardtest.KindLost)
	})
}

// TestRunsThatMeet: a store that all runs share has the row of the first, and the second would check nothing.
func TestRunsThatMeet(t *testing.T) {
	t.Parallel()
	store, clock := oncewardtest.NewStore(t, table)
	found := oncewardtest.Find(t, func(oncewardtest.TestingT) oncewardtest.Config {
		return oncewardtest.Config{
			Store: store, Clock: clock, Effects: oncewardtest.Rows(store.DB(), "payment"),
			Service: func(guard *onceward.Guard) http.Handler {
				return guard.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					_, err := onceward.Tx(r.Context()).ExecContext(r.Context(), `INSERT INTO payment (rowid, amount) VALUES (1, 2)`)
					if err != nil {
						http.Error(w, "it is there", http.StatusConflict)
						return
					}
					answer(w, nil)
				}, onceward.Transactional(), onceward.OperationName("pay"))
			},
		}
	}, payment)
	wantKinds(t, found, oncewardtest.KindFailed)
}

// TestEachRequestIsCheckedByItself: what is found in one does not hide what is wrong with the other.
func TestEachRequestIsCheckedByItself(t *testing.T) {
	t.Parallel()
	found := oncewardtest.Find(t, setup(reserved(onceward.FailureUnknown, func(w *world) http.HandlerFunc {
		return func(rw http.ResponseWriter, r *http.Request) { answer(rw, w.charge(r.Context(), "", `{}`)) }
	}), true), payment, oncewardtest.Post("/payments", `{"amount": 5}`))
	if len(found) != 2 || found[0].Request.Body == found[1].Request.Body {
		t.Errorf("found %v, want the call without a key of each request", found)
	}
}

// TestAProviderThatIsAsked: its answers may depend on what it has got, and a test may watch it beside a check.
func TestAProviderThatIsAsked(t *testing.T) {
	t.Parallel()
	arrived := 0
	oncewardtest.Check(t, func(t oncewardtest.TestingT) oncewardtest.Config {
		config := charging(t)
		var provider *oncewardtest.Provider
		provider = oncewardtest.NewProvider(t, oncewardtest.ProviderConfig{
			Dedups: true,
			Answer: func(oncewardtest.ProviderCall, int) (int, string) {
				return http.StatusCreated, provider.Calls()[provider.Effects()].Path
			},
		})
		provider.AtCall(func(int, oncewardtest.ProviderCall) { arrived++ })
		config.Providers = []*oncewardtest.Provider{provider}
		config.Service = func(guard *onceward.Guard) http.Handler {
			return guard.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, err := provider.Call(r.Context(), "/charges", onceward.FromContext(r.Context()).DownstreamKey("charge"), `{}`)
				answer(w, err)
			}, onceward.Reserved(onceward.FailureUnknown), onceward.OperationName("pay"))
		}
		return config
	}, payment)
	if arrived == 0 {
		t.Error("the test was told of no call")
	}
}
