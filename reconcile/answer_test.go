package reconcile_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// saying is a rule whose resolver is a function.
func saying(answer func(ctx context.Context, rec *store.Record) (reconcile.Answer, error)) reconcile.Rule {
	return reconcile.Rule{Resolver: reconcile.ResolverFunc(answer)}
}

func TestAnswersSettle(t *testing.T) {
	declined := store.Response{Status: 402, Body: []byte("declined")}
	for name, c := range map[string]struct {
		answer reconcile.Answer
		report reconcile.Report
		state  store.State
		tale   string
		audit  string
	}{
		"completed": {
			reconcile.Completed(paid, "ch_1"),
			reconcile.Report{Completed: 1},
			store.StateCompleted, "completed",
			"night shift: resolve completed, the other system's answer []\n" +
				"night shift: resolve completed, the other system's answer [done]",
		},
		"declined is completed too": {
			reconcile.Completed(declined, "ch_1"),
			reconcile.Report{Completed: 1},
			store.StateCompleted, "completed",
			"night shift: resolve completed, the other system's answer []\n" +
				"night shift: resolve completed, the other system's answer [done]",
		},
		"not executed": {
			reconcile.NotExecuted("cancelled"),
			reconcile.Report{NotExecuted: 1},
			store.StateRetryable, "not executed",
			"night shift: resolve not executed, cancelled []\nnight shift: resolve not executed, cancelled [done]",
		},
		"still unknown": {
			reconcile.StillUnknown("processing"),
			reconcile.Report{Postponed: 1},
			store.StateUnknown,
			"postponed", "",
		},
		"nothing": {reconcile.Answer{}, reconcile.Report{Postponed: 1}, store.StateUnknown, "postponed", ""},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(t *testing.T) {
				s := memory.New()
				claim := lose(t, s, "k")
				var told journal
				poller := newPoller(t, s, reconcile.Rule{Resolver: always(c.answer)},
					reconcile.Config{Actor: "night shift", Observer: &told})
				run(t, poller, c.report)
				rec := record(t, s, "k")
				if rec.State != c.state || rec.Attempt != claim.Attempt {
					t.Errorf("the record is %s at attempt %d, want %s at %d", rec.State, rec.Attempt, c.state, claim.Attempt)
				}
				if c.state == store.StateCompleted && (rec.ProviderID != "ch_1" || len(rec.Response.Body) == 0) {
					t.Errorf("the record has the id %q and the answer %+v", rec.ProviderID, rec.Response)
				}
				if got := audit(t, s, "k"); got != c.audit {
					t.Errorf("the audit says\n%s\nwant\n%s", got, c.audit)
				}
				want := reconcile.ReconciledEvent{ID: claim.ID, Operation: transfers, Attempt: claim.Attempt, Outcome: c.tale}
				if len(told.events) != 1 || told.events[0] != want {
					t.Errorf("the observer was told %+v, want %+v", told.events, want)
				}
			})
		})
	}
}

// TestResolverFails: an error, a panic and silence are attempts that learned nothing. They end nothing but themselves.
func TestResolverFails(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(ctx context.Context, rec *store.Record) (reconcile.Answer, error)
		want   string
		is     error
	}{
		"with an error": {
			func(context.Context, *store.Record) (reconcile.Answer, error) {
				return reconcile.Answer{},
					errDown
			}, "pulled the plug", errDown,
		},
		"with an error beside an answer": {
			func(context.Context, *store.Record) (reconcile.Answer, error) {
				return reconcile.Completed(paid, ""), errDown
			}, "pulled the plug", errDown,
		},
		"with a panic": {
			func(context.Context, *store.Record) (reconcile.Answer, error) { panic("no such field") },
			"panic: no such field", nil,
		},
		"with silence": {
			func(ctx context.Context, _ *store.Record) (reconcile.Answer, error) {
				<-ctx.Done()
				return reconcile.Answer{}, ctx.Err()
			}, "no answer within 7s", context.DeadlineExceeded,
		},
		"with a long story": {
			func(context.Context, *store.Record) (reconcile.Answer, error) {
				return reconcile.Answer{}, errors.New("<html>" + strings.Repeat("ö", 1<<20))
			}, "<html>", nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(t *testing.T) {
				s := memory.New()
				lose(t, s, "bad")
				lose(t, s, "good")
				var told journal
				poller := newPoller(t, s, saying(func(ctx context.Context, rec *store.Record) (reconcile.Answer, error) {
					if rec.Key == "good" {
						return reconcile.Completed(paid, ""), nil
					}
					return c.answer(ctx, rec)
				}), reconcile.Config{
					Timeout: 7 * time.Second, Concurrency: 1, MaxAttempts: 2, MaxBackoff: time.Minute, Observer: &told,
				})
				begin := time.Now()
				run(t, poller, reconcile.Report{Completed: 1, Postponed: 1})
				if took := time.Since(begin); took > 7*time.Second {
					t.Errorf("it took %s", took)
				}
				wantState(t, s, "good", store.StateCompleted)
				rec := record(t, s, "bad")
				if rec.State != store.StateUnknown || rec.ReconcileCount != 1 || !strings.Contains(rec.ReconcileError, c.want) ||
					len(rec.ReconcileError) > 1100 {
					t.Errorf("the record is %s after %d attempts, because of %d bytes: %.100q", rec.State, rec.ReconcileCount,
						len(rec.ReconcileError), rec.ReconcileError)
				}
				if err := told.events[0].Err; err == nil || c.is != nil && !errors.Is(err, c.is) {
					t.Errorf("the observer was told of %v, want %v", err, c.is)
				}
				time.Sleep(time.Minute)
				run(t, poller, reconcile.Report{Postponed: 1, DeadLetters: 1})
				if got := audit(t, s, "bad"); got != "" {
					t.Errorf("nothing was done, but the audit says %s", got)
				}
			})
		})
	}
}

// TestAnswerIsTooLate: what was learned about one attempt changes nothing once another has settled it, or the record
// has moved to another attempt. That is no error.
func TestAnswerIsTooLate(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile func(t *testing.T, store *memory.Store, c store.Claim)
		want      store.State
	}{
		"completed by its owner": {func(t *testing.T, s *memory.Store, c store.Claim) {
			_, err := s.Complete(t.Context(), c, &store.Completion{Response: store.Response{Status: 200}})
			must(t, err)
		}, store.StateCompleted},
		"a new attempt in progress": {func(t *testing.T, store *memory.Store, c store.Claim) {
			must(t, store.ResolveNotExecuted(t.Context(), c, "a person knew"))
			start(t, store, transfers, "k")
		}, store.StateInProgress},
		"a new attempt that is unknown": {func(t *testing.T, store *memory.Store, c store.Claim) {
			must(t, store.ResolveNotExecuted(t.Context(), c, "a person knew"))
			lose(t, store, "k")
		}, store.StateUnknown},
		"removed": {func(t *testing.T, store *memory.Store, c store.Claim) {
			must(t, store.Bust(t.Context(), c.ID, true))
		}, store.StateExpired},
	} {
		for kind, answer := range map[string]reconcile.Answer{
			"completed": reconcile.Completed(paid, "ch_1"), "not executed": reconcile.NotExecuted("cancelled"),
			"nothing": reconcile.StillUnknown("?"),
		} {
			t.Run(name+", "+kind, func(t *testing.T) {
				inTime(t, func(t *testing.T) {
					s := memory.New()
					claim := lose(t, s, "k")
					var told journal
					var before store.Record
					poller := newPoller(t, s, saying(func(context.Context, *store.Record) (reconcile.Answer, error) {
						c.meanwhile(t, s, claim)
						before = record(t, s, "k")
						return answer, nil
					}), reconcile.Config{Observer: &told})
					ask(t, poller, "k", reconcile.Report{})
					after := record(t, s, "k")
					if after.State != c.want || after.Attempt != before.Attempt || after.ReconcileCount != before.ReconcileCount ||
						!after.SettledAt.Equal(before.SettledAt) {
						t.Errorf("the record is %+v, want it as it was, %+v", after, before)
					}
					if len(told.events) != 0 {
						t.Errorf("the observer was told %+v of what did not happen", told.events)
					}
					if got := audit(t, s, "k"); kind != "nothing" && !strings.Contains(got, "[failed: onceward: resolve") {
						t.Errorf("the audit does not tell that it was refused: %s", got)
					}
				})
			})
		}
	}
}

// TestResolverCannotRedirect: a resolver that changes the record it is shown does not change what its answer is for.
func TestResolverCannotRedirect(t *testing.T) {
	inTime(t, func(t *testing.T) {
		s := memory.New()
		lose(t, s, "k")
		other := lose(t, s, "other")
		ask(t, newPoller(t, s, saying(func(_ context.Context, rec *store.Record) (reconcile.Answer, error) {
			rec.ID, rec.Attempt = other.ID, other.Attempt
			return reconcile.Completed(paid, ""), nil
		}), reconcile.Config{}), "k", reconcile.Report{Completed: 1})
		wantState(t, s, "k", store.StateCompleted)
		wantUntouched(t, s, "other")
	})
}

// TestAnswerThatCannotBeStored: it would be refused each time, so it counts as a try and ends with a person.
func TestAnswerThatCannotBeStored(t *testing.T) {
	inTime(t, func(t *testing.T) {
		s := memory.New()
		lose(t, s, "k")
		poller := newPoller(t, s, reconcile.Rule{Resolver: always(reconcile.Completed(store.Response{}, ""))},
			reconcile.Config{MaxAttempts: 2, MaxBackoff: time.Minute})
		run(t, poller, reconcile.Report{Postponed: 1})
		time.Sleep(time.Minute)
		run(t, poller, reconcile.Report{Postponed: 1, DeadLetters: 1})
		if rec := record(t, s, "k"); !rec.DeadLetter || !strings.Contains(rec.ReconcileError, "cannot be stored") ||
			!strings.Contains(rec.ReconcileError, "status 0") {
			t.Errorf("dead letter %t because %q", rec.DeadLetter, rec.ReconcileError)
		}
	})
}

// TestStoreIsAway: what was learned is not written, nothing is lost, and no try is counted.
func TestStoreIsAway(t *testing.T) {
	for _, away := range []string{"get", "audit", "resolve"} {
		t.Run(away, func(t *testing.T) {
			inTime(t, func(t *testing.T) {
				s := &faulty{Store: memory.New()}
				lose(t, s, "k")
				s.before = func(call string) error {
					if call == away {
						return errDown
					}
					return nil
				}
				poller := newPoller(t, s, reconcile.Rule{Resolver: always(reconcile.Completed(paid, ""))}, reconcile.Config{})
				if got, err := poller.RunOnce(t.Context()); !errors.Is(err, store.ErrUnavailable) || got != (reconcile.Report{}) {
					t.Errorf("got %+v, %v", got, err)
				}
				wantUntouched(t, s.Store, "k")
				s.before = nil
				run(t, poller, reconcile.Report{Completed: 1})
			})
		})
	}
}

// TestNotUnknown: what is not unknown is left alone.
func TestNotUnknown(t *testing.T) {
	inTime(t, func(t *testing.T) {
		store := memory.New()
		bank := always(reconcile.Completed(paid, ""))
		poller := newPoller(t, store, reconcile.Rule{Resolver: bank}, reconcile.Config{})
		start(t, store, transfers, "running")
		must(t, store.Release(t.Context(), start(t, store, transfers, "released"), "nothing done"))
		for _, key := range []string{"running", "released", "nobody"} {
			ask(t, poller, key, reconcile.Report{})
		}
		time.Sleep(time.Hour)
		run(t, poller, reconcile.Report{})
		bank.wantAsked(t, 0)
	})
}

func TestResponse(t *testing.T) {
	t.Parallel()
	got := reconcile.Response(201, http.Header{"x-b": {"2", "1"}, "Location": {"/c/1"}, "A": {"0"}}, []byte("body"))
	want := store.Response{Status: 201, Body: []byte("body"), Header: []store.HeaderField{
		{Name: "A", Value: "0"}, {Name: "Location", Value: "/c/1"}, {Name: "X-B", Value: "2"}, {Name: "X-B", Value: "1"},
	}}
	if !got.Equal(&want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestAnswersAboutSteps of operations that have none: package phase tests those that have.
func TestAnswersAboutSteps(t *testing.T) {
	inTime(t, func(t *testing.T) {
		store := memory.New()
		lose(t, store, "k")
		about := reconcile.Step(phase.StepOutcome{Step: "charge", Result: phase.ResultDone})
		wantWrongRule(t, store, about, "for an operation that has no current step")
		poller := newPoller(t, store, reconcile.Rule{Resolver: always(reconcile.Finish(paid, "ch_1"))}, reconcile.Config{})
		ask(t, poller, "k", reconcile.Report{Completed: 1})
	})
}

// TestCompletedForAPhasedOperation would skip steps. The rule is refused at its first use, and the corrected one settles.
func TestCompletedForAPhasedOperation(t *testing.T) {
	inTime(t, func(t *testing.T) {
		s := memory.New()
		loseResumed(t, s, `{"v":2,"via":"http","steps":["seat","charge"],"done":["seat"],"intent":"charge","data":{}}`)
		wantWrongRule(t, s, reconcile.Completed(paid, "ch_1"), "answers Completed for a phased operation")
		done := reconcile.Step(phase.StepOutcome{Step: "charge", Result: phase.ResultDone})
		poller := newPoller(t, s, reconcile.Rule{Resolver: always(done)}, reconcile.Config{})
		ask(t, poller, "k", reconcile.Report{Steps: 1})
	})
}

// wantWrongRule lets a rule settle the record k by an answer that is none for its kind of operation.
func wantWrongRule(t *testing.T, s store.Store, answer reconcile.Answer, why string) {
	t.Helper()
	var log strings.Builder
	poller := newPoller(t, s, reconcile.Rule{Resolver: always(answer)}, reconcile.Config{
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	report, err := poller.RunOnce(t.Context())
	if !errors.Is(err, onceward.ErrMisconfigured) || report != (reconcile.Report{Postponed: 1}) {
		t.Errorf("B3: a rule that is wrong came to %+v, %v, want it to be reported", report, err)
	}
	if rec := record(t, s, "k"); rec.State != store.StateUnknown || !strings.Contains(rec.ReconcileError, why) {
		t.Errorf("B3: the record is %s, and says %q, want %q", rec.State, rec.ReconcileError, why)
	}
	if text := log.String(); !strings.Contains(text, "level=ERROR") || !strings.Contains(text, "a rule is wrong") {
		t.Errorf("B3: the log does not report the rule:\n%s", text)
	}
}

// loseResumed makes an unknown record of an operation that is resumed by code of its own, at a recovery point.
func loseResumed(t *testing.T, s store.Store, data string) store.Claim {
	t.Helper()
	v, err := s.Reserve(t.Context(), &store.Reservation{
		ID: idOf("k"), Operation: transfers, Fingerprints: []store.Fingerprint{{Secret: 1}}, Nonce: store.Nonce{1},
		Lease: time.Minute, Retention: 24 * time.Hour, OnLost: store.LostResume,
	})
	must(t, err)
	claim := store.Claim{ID: idOf("k"), Attempt: v.Record.Attempt}
	must(t, s.Checkpoint(t.Context(), claim, store.Checkpoint{Point: "page 7", Data: []byte(data)}))
	must(t, s.Abandon(t.Context(), claim, "no answer came"))
	return claim
}

// TestResumedByOtherCode: an operation with recovery points that package phase has not written is settled as a whole.
func TestResumedByOtherCode(t *testing.T) {
	inTime(t, func(t *testing.T) {
		s := memory.New()
		claim := loseResumed(t, s, `{"page":7}`)
		must(t, newOperator(t, s).RetryNow(t.Context(), zoe, claim))
		wantState(t, s, "k", store.StateUnknown)
		poller := newPoller(t, s, reconcile.Rule{Resolver: always(reconcile.Completed(paid, ""))}, reconcile.Config{})
		ask(t, poller, "k", reconcile.Report{Completed: 1})
	})
}

// TestPhasedByALaterProgram: what this program cannot read it does not settle, by no answer.
func TestPhasedByALaterProgram(t *testing.T) {
	for name, answer := range map[string]reconcile.Answer{
		"completed":    reconcile.Completed(paid, ""),
		"not executed": reconcile.NotExecuted("no"),
		"finish":       reconcile.Finish(paid, ""),
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(t *testing.T) {
				s := memory.New()
				loseResumed(t, s, `{"v":99,"via":"http"}`)
				poller := newPoller(t, s, reconcile.Rule{Resolver: always(answer)}, reconcile.Config{})
				ask(t, poller, "k", reconcile.Report{Postponed: 1})
				wantState(t, s, "k", store.StateUnknown)
			})
		})
	}
}

// TestExternalEventAboutAnotherStep: a report of the other system about a step that is done, or was tried before, does
// not settle the step whose call is in doubt, however the external event names the operation.
func TestExternalEventAboutAnotherStep(t *testing.T) {
	for name, c := range map[string]struct {
		subject string
		want    reconcile.Report
	}{
		"of the step in doubt":        {downstreamKey("k", "transfer"), reconcile.Report{Steps: 1}},
		"of an earlier step":          {downstreamKey("k", "reserve"), reconcile.Report{Postponed: 1}},
		"of an earlier step's effect": {"hold_1", reconcile.Report{Postponed: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(t *testing.T) {
				s := memory.New()
				v, err := s.Reserve(t.Context(), &store.Reservation{
					ID: idOf("k"), Operation: transfers, Fingerprints: []store.Fingerprint{{Secret: 1}}, Nonce: store.Nonce{1},
					Lease: time.Minute, Retention: 24 * time.Hour, OnLost: store.LostResume, DownstreamSecret: guardSecret,
				})
				must(t, err)
				claim := store.Claim{ID: idOf("k"), Attempt: v.Record.Attempt}
				const state = `{"v":2,"via":"http","steps":["reserve","transfer"],"done":["reserve"],` +
					`"intent":"transfer","by":1,"data":{}}`
				must(t, s.Checkpoint(t.Context(), claim, store.Checkpoint{
					Point: "transfer (begun)", Data: []byte(state), ProviderID: "hold_1",
				}))
				abandon(t, s, claim)
				event := about("k", "e1", 1, "cancelled")
				event.Subject = c.subject
				keep(t, s, event)
				poller := newPoller(t, s, hearing(nil), reconcile.Config{})
				must(t, poller.Apply(t.Context(), event))
				if c.want.Steps == 0 {
					wantUntouched(t, s, "k")
					ask(t, poller, "k", c.want)
					wantState(t, s, "k", store.StateUnknown)
					return
				}
				wantState(t, s, "k", store.StateInProgress)
			})
		})
	}
}

// TestRefusedStepIsInTheAudit as refused: that nothing was done is known.
func TestRefusedStepIsInTheAudit(t *testing.T) {
	const state = `{"v":2,"via":"http","steps":["charge","confirm"],"intent":"charge","by":1,"data":{"price":5}}`
	for name, c := range map[string]struct {
		data    string
		outcome phase.StepOutcome
	}{
		"another step":       {state, phase.StepOutcome{Step: "confirm", Result: phase.ResultDone}},
		"no result":          {state, phase.StepOutcome{Step: "charge"}},
		"data without price": {state, phase.StepOutcome{Step: "charge", Result: phase.ResultDone, Data: []byte(`{}`)}},
		"no steps":           {`{"page":7}`, phase.StepOutcome{Step: "charge", Result: phase.ResultDone}},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(t *testing.T) {
				store := memory.New()
				claim := loseResumed(t, store, c.data)
				if err := newOperator(t, store).ResolveStep(t.Context(), zoe, claim, c.outcome); err == nil {
					t.Error("the act was said to be done")
				}
				wantUntouched(t, store, "k")
				if got := audit(t, store, "k"); !strings.Contains(got, "[failed: ") {
					t.Errorf("I16: the audit says %s", got)
				}
			})
		})
	}
}

// TestHistoryOfAttempts: the audit contains the answer of each attempt, as far as it differs from the one before.
func TestHistoryOfAttempts(t *testing.T) {
	inTime(t, func(t *testing.T) {
		s := memory.New()
		lost := lose(t, s, "key")
		asked := 0
		poller := newPoller(t, s, saying(func(context.Context, *store.Record) (reconcile.Answer, error) {
			if asked++; asked == 14 {
				return reconcile.Answer{}, errors.New("the bank is closed")
			}
			return reconcile.StillUnknown("being looked into"), nil
		}), reconcile.Config{MaxAttempts: 40})
		for range 33 {
			if _, err := poller.Reconcile(t.Context(), lost.ID); err != nil {
				t.Fatal(err)
			}
		}
		entries, err := s.Audit(t.Context(), lost.ID)
		must(t, err)
		var got []string
		for _, e := range entries {
			number := strings.TrimPrefix(e.Action, "reconcile attempt ")
			if e.Attempt != lost.Attempt || e.Actor != "reconciler" || e.Reason != "no answer came" {
				t.Errorf("an attempt is written as %+v", e)
			}
			if e.Outcome != "being looked into" {
				number += " " + e.Outcome
			}
			got = append(got, number)
		}
		want := []string{"1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "14 the query failed: the bank is closed", "15", "16", "32"}
		if !slices.Equal(got, want) {
			t.Errorf("written are the attempts %q, want %q", got, want)
		}
	})
}

// TestAFailedQuestionIsNoAnswer: why the outcome is unknown, and what became of asking, are two fields in the record, in
// the audit and in the log. A question that is refused would else be read as the operation that was refused.
func TestAFailedQuestionIsNoAnswer(t *testing.T) {
	inTime(t, func(t *testing.T) {
		s := memory.New()
		lost := lose(t, s, "key")
		var log strings.Builder
		poller := newPoller(t, s, saying(func(context.Context, *store.Record) (reconcile.Answer, error) {
			return reconcile.Answer{}, errors.New("provider: refused, nothing was done")
		}), reconcile.Config{MaxAttempts: 1, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		run(t, poller, reconcile.Report{Postponed: 1, DeadLetters: 1})
		const asked = "the query failed: provider: refused, nothing was done"
		if rec := record(t, s, "key"); rec.LastError != "no answer came" || rec.ReconcileError != asked {
			t.Errorf("the record says %q, and of asking %q", rec.LastError, rec.ReconcileError)
		}
		if entries, err := s.Audit(t.Context(), lost.ID); err != nil || len(entries) != 1 ||
			entries[0].Reason != "no answer came" || entries[0].Outcome != asked {
			t.Errorf("the audit says %+v, %v", entries, err)
		}
		if want := `reason="no answer came" asked="` + asked + `"`; !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %s:\n%s", want, log.String())
		}
	})
}
