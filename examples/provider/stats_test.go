package provider

import (
	"maps"
	"testing"
)

func TestStatsCountStrikesFromTheStart(t *testing.T) {
	t.Parallel()
	server, client := start(t, Config{})
	wantStats := func(want map[Kind]int) {
		t.Helper()
		got, err := client.Stats(bounded(t))
		if err != nil || !maps.Equal(got, want) {
			t.Errorf("stats over HTTP %v, %v; want %v", got, err, want)
		}
		if got := server.Stats(); !maps.Equal(got, want) {
			t.Errorf("stats %v, want %v", got, want)
		}
	}
	wantStats(map[Kind]int{})
	charge := mustCharge(t, client, "", order("r"))
	mustSet(t, server,
		Rule{Kind: ErrorBefore, Status: 503, Times: 2},
		Rule{Kind: ResetAfter, Match: Match{Reference: "none"}},
		Rule{Kind: WebhookDrop},
	)
	for range 3 {
		_, _ = client.Charge(bounded(t), "", order("r")) // the first two fail, as the rules say
	}
	mustRefund(t, client, "", part(charge, ""))
	wantStats(map[Kind]int{ErrorBefore: 2, WebhookDrop: 2})

	server.ClearFaults()
	mustCharge(t, client, "", order("r"))
	wantStats(map[Kind]int{ErrorBefore: 2, WebhookDrop: 2})

	mustSet(t, server, Rule{Kind: ErrorBefore, Times: 1})
	if _, _, err := client.FindRefund(bounded(t), "k"); outcome(err) != "look-up failed 500" {
		t.Errorf("%v, want the fault", err)
	}
	wantStats(map[Kind]int{ErrorBefore: 3, WebhookDrop: 2})

	server.Stats()[ErrorBefore] = 99
	wantStats(map[Kind]int{ErrorBefore: 3, WebhookDrop: 2})
}

// Faults do not strike what watches them, or a display would go blind when it matters, and would count itself.
func TestStatsAreNotStruck(t *testing.T) {
	t.Parallel()
	server, client := start(t, Config{})
	mustSet(t, server, Rule{Kind: ErrorBefore})
	if got, err := client.Stats(bounded(t)); err != nil || len(got) != 0 {
		t.Errorf("stats %v, %v; want none", got, err)
	}
}
