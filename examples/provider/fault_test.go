package provider

import (
	"context"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestFaultsOnRequests(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rule    Rule
		want    string
		effects int
	}{
		{Rule{Kind: TimeoutBefore, Delay: time.Millisecond}, "unknown", 0},
		{Rule{Kind: TimeoutAfter, Delay: time.Millisecond}, "unknown", 1},
		{Rule{Kind: ErrorBefore}, "unknown", 0},
		{Rule{Kind: ErrorBefore, Status: 502}, "unknown", 0},
		{Rule{Kind: ErrorBefore, Status: 503}, "refused not_processed", 0},
		{Rule{Kind: ErrorAfter}, "unknown", 1},
		{Rule{Kind: ErrorAfter, Status: 503}, "unknown", 1},
		{Rule{Kind: ResetBefore}, "unknown", 0},
		{Rule{Kind: ResetAfter}, "unknown", 1},
		{Rule{Kind: Delay, Delay: time.Millisecond}, "done", 1},
	} {
		t.Run(string(c.rule.Kind), func(t *testing.T) {
			t.Parallel()
			server, client := start(t, Config{Dedup: true})
			// A connection that was used before is the one that net/http would send a request on again.
			mustCharge(t, client, "before", order("before"))
			c.rule.Times = 1
			mustSet(t, server, c.rule)
			_, err := client.Charge(bounded(t), "k", order("r"))
			if got := outcome(err); got != c.want {
				t.Errorf("%s (%v), want %s", got, err, c.want)
			}
			wantEffects(t, server, "r", c.effects)
			mustCharge(t, client, "k", order("r"))
			wantEffects(t, server, "r", 1)
		})
	}
}

func TestTimeoutEndsWhenTheClientLeaves(t *testing.T) {
	t.Parallel()
	for kind, effects := range map[Kind]int{TimeoutBefore: 0, TimeoutAfter: 1} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			server, client := start(t, Config{})
			mustSet(t, server, Rule{Kind: kind, Name: "struck"})
			ctx, leave := context.WithCancel(bounded(t))
			came := make(chan error, 1)
			go func() {
				_, err := client.Charge(ctx, "k", order("r"))
				came <- err
			}()
			if err := server.Await(bounded(t), "struck", 1); err != nil {
				t.Fatal(err)
			}
			leave()
			if err := <-came; outcome(err) != "unknown" || !errors.Is(err, context.Canceled) {
				t.Errorf("%v, want an unknown outcome because of the context", err)
			}
			server.requests.Wait()
			wantEffects(t, server, "r", effects)
		})
	}
}

func TestHeldRequestIsDoneAfterItsClientLeft(t *testing.T) {
	t.Parallel()
	server, client := start(t, Config{Dedup: true})
	mustSet(t, server, Rule{Kind: Hold, Name: "on its way", Times: 1})
	ctx, leave := context.WithCancel(bounded(t))
	left := make(chan error, 1)
	go func() {
		_, err := client.Charge(ctx, "k", order("r"))
		left <- err
	}()
	if err := client.Await(bounded(t), "on its way", 1); err != nil {
		t.Fatal(err)
	}
	leave()
	if err := <-left; outcome(err) != "unknown" {
		t.Errorf("%v, want an unknown outcome", err)
	}
	if _, ok, err := client.Find(bounded(t), "k"); ok || err != nil {
		t.Errorf("found before it was done: %v, %v", ok, err)
	}
	if err := client.Release(bounded(t), "on its way"); err != nil {
		t.Fatal(err)
	}
	server.requests.Wait()
	if _, ok, err := client.Find(bounded(t), "k"); !ok || err != nil {
		t.Errorf("not done after the release: %v, %v", ok, err)
	}
}

// The client is gone from the beginning here, and the time is that of the bubble: whatever ends the wait too early
// shows.
func TestOnlyReleaseOrDelayEndTheWait(t *testing.T) {
	t.Parallel()
	for _, rule := range []Rule{{Kind: Hold, Name: "held"}, {Kind: Delay, Delay: time.Minute}} {
		t.Run(string(rule.Kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				provider, err := New(Config{Faults: Faults{Rules: []Rule{rule}}})
				if err != nil {
					t.Fatal(err)
				}
				defer provider.Close()
				gone, leave := context.WithCancel(t.Context())
				leave()
				body := strings.NewReader(`{"amount":5,"currency":"EUR","reference":"r"}`)
				go provider.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(gone, "POST", "/charges", body))
				time.Sleep(time.Minute - time.Nanosecond)
				synctest.Wait()
				if made := provider.Charges("r"); len(made) != 0 {
					t.Errorf("done too early: %+v", made)
				}
				provider.Release("held")
				time.Sleep(time.Nanosecond)
				synctest.Wait()
				if made := provider.Charges("r"); len(made) != 1 {
					t.Errorf("%d effects at the end, want 1", len(made))
				}
			})
		})
	}
}

func TestHoldAfterHasDoneIt(t *testing.T) {
	t.Parallel()
	server, client := start(t, Config{})
	mustSet(t, server, Rule{Kind: HoldAfter, Name: "done"})
	const callers = 3
	came := make(chan error, callers)
	for range callers {
		go func() {
			_, err := client.Charge(bounded(t), "", order("r"))
			came <- err
		}()
	}
	if err := server.Await(bounded(t), "done", callers); err != nil {
		t.Fatal(err)
	}
	wantEffects(t, server, "r", callers)
	server.ClearFaults()
	for range callers {
		if err := <-came; err != nil {
			t.Error(err)
		}
	}
}

func TestCloseCutsOffWhatIsHeld(t *testing.T) {
	t.Parallel()
	server, client := start(t, Config{})
	mustSet(t, server, Rule{Kind: Hold, Name: "held"})
	came := make(chan error, 1)
	go func() {
		_, err := client.Charge(bounded(t), "k", order("r"))
		came <- err
	}()
	if err := server.Await(bounded(t), "held", 1); err != nil {
		t.Fatal(err)
	}
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-came; outcome(err) != "unknown" {
		t.Errorf("%v, want an unknown outcome", err)
	}
	wantEffects(t, server, "r", 0)
	if _, err := client.Charge(bounded(t), "k", order("r")); outcome(err) != "refused not_sent" {
		t.Errorf("%v, want a refusal, as no server listens", err)
	}
}

func TestRulesStrikeInOrderAndOnlyWhatTheyMatch(t *testing.T) {
	t.Parallel()
	server, client := start(t, Config{})
	charge := mustCharge(t, client, "", order("bad"))
	mustSet(t, server,
		Rule{Match: Match{Method: "POST", Path: "/charges", Reference: "bad"}, Kind: ErrorBefore, Times: 2},
		Rule{Match: Match{Reference: "bad", Path: "/charges"}, Kind: ErrorBefore, Status: 503, Times: 1},
		Rule{Match: Match{Path: "/charges/*"}, Kind: ErrorBefore, Status: 503},
	)
	var got []string
	for _, reference := range []string{"bad", "good", "bad", "bad", "bad"} {
		_, err := client.Charge(bounded(t), "", order(reference))
		got = append(got, outcome(err))
	}
	if want := []string{"unknown", "done", "unknown", "refused not_processed", "done"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if _, err := client.Get(bounded(t), charge.ID); outcome(err) != "look-up failed 503" {
		t.Errorf("get: %v", err)
	}
	if _, err := client.Refund(bounded(t), "", RefundRequest{Charge: charge.ID, Amount: 1}); err != nil {
		t.Errorf("refund: %v", err)
	}
}

func TestRandomFaultsFollowTheSeed(t *testing.T) {
	t.Parallel()
	run := func(seed uint64) (outcomes []string) {
		_, client := start(t, Config{Faults: RandomFaults(seed, time.Millisecond, map[Kind]float64{
			ErrorBefore: 0.3, ErrorAfter: 0.3, ResetAfter: 0.2, Delay: 0.1, Hold: 0,
		})})
		for range 40 {
			_, err := client.Charge(bounded(t), "", order("r"))
			outcomes = append(outcomes, outcome(err))
		}
		return outcomes
	}
	first, again, other := run(1), run(1), run(2)
	if !slices.Equal(first, again) {
		t.Errorf("the same seed gave\n%q\n%q", first, again)
	}
	if slices.Equal(first, other) {
		t.Error("two seeds gave the same faults")
	}
	if !slices.Contains(first, "unknown") || !slices.Contains(first, "done") {
		t.Errorf("no mixture: %q", first)
	}
}

func TestFaultsGoOverHTTP(t *testing.T) {
	t.Parallel()
	server, client := start(t, Config{})
	rules := []Rule{
		{Kind: ErrorBefore, Status: 503, Match: Match{Method: "POST", Path: "/charges", Reference: "r"}, Times: 9},
		{Kind: Delay, Delay: 1500 * time.Millisecond, Rate: 0.5, Name: "late"},
	}
	text, err := json.Marshal(Faults{Seed: 7, Rules: rules})
	if err != nil {
		t.Fatal(err)
	}
	var back Faults
	if err := json.Unmarshal(text, &back); err != nil || !reflect.DeepEqual(back, Faults{Seed: 7, Rules: rules}) {
		t.Errorf("%s came back as %+v, %v", text, back, err)
	}
	if err := client.SetFaults(bounded(t), back); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Charge(bounded(t), "", order("r")); outcome(err) != "refused not_processed" {
		t.Errorf("%v, want the fault", err)
	}
	if err := client.ClearFaults(bounded(t)); err != nil {
		t.Fatal(err)
	}
	mustCharge(t, client, "", order("r"))
	wantEffects(t, server, "r", 1)
}

func TestBadFaultsAreRefused(t *testing.T) {
	t.Parallel()
	server, client := start(t, Config{})
	mustSet(t, server, Rule{Kind: ErrorBefore, Status: 503})
	for _, text := range []string{
		`{"rules":[{"kind":"explode"}]}`,
		`{"rules":[{"kind":"hold"}]}`,
		`{"rules":[{"kind":"delay"}]}`,
		`{"rules":[{"kind":"delay","delay":"soon"}]}`,
		`{"rules":[{"kind":"delay","delay":"-1s"}]}`,
		`{"rules":[{"kind":"error_before","status":404}]}`,
		`{"rules":[{"kind":"error_before","rate":1.5}]}`,
		`{"rules":[{"kind":"error_before","match":{"path":"["}}]}`,
		`{"rules":[{"kind":"error_before","time":1}]}`,
		`{"rule":[]}`,
	} {
		err := client.call(bounded(t), "PUT", "/faults", "", json.RawMessage(text), nil)
		if got := outcome(err); got != "refused invalid_request" {
			t.Errorf("%s: %s", text, got)
		}
	}
	if _, err := client.Charge(bounded(t), "", order("r")); outcome(err) != "refused not_processed" {
		t.Errorf("%v: a refused script replaced the one in force", err)
	}
	if _, err := New(Config{Faults: Faults{Rules: []Rule{{Kind: "explode"}}}}); err == nil {
		t.Error("New took a fault that does not exist")
	}
}
