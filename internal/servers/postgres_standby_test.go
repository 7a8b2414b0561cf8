package servers

import "testing"

// recovers asks whether a server is a standby.
func recovers(t *testing.T, url string) (standby bool) {
	t.Helper()
	must(t, ask(t.Context(), url, `SELECT pg_is_in_recovery()`, &standby))
	return standby
}

// TestFailOverAndBack: a standby has what its primary has, takes over, and is followed by the old one in turn. One
// address leads to either.
func TestFailOverAndBack(t *testing.T) {
	t.Parallel()
	first := NewPostgres(t)
	must(t, first.Exec(t.Context(), `CREATE TABLE things (n int); INSERT INTO things VALUES (1)`))
	second := first.NewStandby(t)
	proxy := NewProxy(t, first.URL())
	if recovers(t, proxy.URL()) || !recovers(t, second.URL()) {
		t.Fatal("the first is to be the primary, and the second its standby")
	}
	early := connect(t, proxy.URL())
	for _, each := range []struct{ old, next *PostgresServer }{{first, second}, {second, first}} {
		must(t, each.old.Exec(t.Context(), `INSERT INTO things VALUES (1)`))
		must(t, each.old.AwaitStandby(t.Context(), each.next))
		must(t, proxy.Retarget(each.next.URL()))
		if !recovers(t, proxy.URL()) {
			t.Error("the address leads to the old primary")
		}
		if each.old == first && count(t, early, "things") != 2 {
			t.Error("a connection did not stay where it was")
		}
		must(t, each.old.Stop())
		must(t, each.next.Promote(t.Context()))
		if recovers(t, proxy.URL()) {
			t.Error("a standby that was promoted is still one")
		}
		must(t, each.old.Follow(each.next))
		if !recovers(t, each.old.URL()) {
			t.Error("the old primary is no standby")
		}
	}
	if n := count(t, connect(t, proxy.URL()), "things"); n != 3 {
		t.Errorf("%d rows, want 3", n)
	}
}
