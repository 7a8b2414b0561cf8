package postgres

import "testing"

// TestGateIsNotSeizedBehindTheConnection: a handler that took the connection itself in the last call before its time was over
// may be at it now, and may have ended the transaction.
func TestGateIsNotSeizedBehindTheConnection(t *testing.T) {
	t.Parallel()
	for name, take := range map[string]func(*gate){
		"the connection itself": func(g *gate) { g.raw.Store(true) },
		"large objects":         func(g *gate) { g.objects.Store(true) },
	} {
		g := &gate{t: &transaction{}}
		if _, err := g.enter(); err != nil {
			t.Fatal(err)
		}
		g.lock()
		take(g)
		g.leave()
		if g.seize() {
			t.Errorf("E8: the gate was seized from a handler that has %s", name)
		}
	}
}

func TestStatementsThatMayEndATransaction(t *testing.T) {
	t.Parallel()
	for statement, want := range map[string]bool{
		"COMMIT": true, " commit\n": true, "END": true, "/* why */ -- and how\nCommit/**/": true, "SELECT 1; END TRANSACTION": true,
		"PREPARE TRANSACTION 'x'": true, "COMMIT AND CHAIN": true, "": false, ";": false, "/* commit": false, "--": false,
		"CREATE TEMP TABLE t () ON COMMIT DROP": false, "SELECT CASE WHEN true THEN 1 END": false,
		"INSERT INTO commitment VALUES ('commit')": false, "ROLLBACK TO SAVEPOINT a": false,
	} {
		if got := mayEnd(statement); got != want {
			t.Errorf("%q may end a transaction: %t, want %t", statement, got, want)
		}
	}
}
