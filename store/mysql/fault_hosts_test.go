package mysql_test

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/mysql"
)

// silent is the address of a host that takes connections and says nothing, as a server does that hangs.
func silent(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { must(t, listener.Close()) })
	return listener.Addr().String()
}

// TestHostThatHangs: a host that takes connections and says nothing does not keep a caller from the next one.
func TestHostThatHangs(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "a host may take ten seconds")
	url := strings.Replace(mariadb(t), "@", "@"+silent(t)+",", 1)
	s, err := mysql.Open(t.Context(), url, quiet)
	if err != nil {
		t.Fatalf("37: the second host was not asked: %v", err)
	}
	defer s.Close()
	own(t, s, reservation("key"))
}

// TestManyConnectionsToANodeThatTurnsReadOnly: the first transaction after a fail-over is served, however many
// connections to the old node are idle.
func TestManyConnectionsToANodeThatTurnsReadOnly(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts a server of its own; TestReadOnlyNode is the same with one connection")
	first, second := servers.NewMariaDB(t), servers.MariaDB(t)
	name := second.Database(t)
	must(t, first.Exec(t.Context(), "CREATE DATABASE "+name))
	openStore(t, strings.TrimSuffix(second.URL(), "/test")+"/"+name) // makes the tables
	s := openStore(t, "mysql://root@"+first.Addr()+","+second.Addr()+"/"+name)
	var all, done sync.WaitGroup
	const many = 24
	all.Add(many)
	for i := range many {
		done.Go(func() {
			transacted(t, s, string(rune('a'+i)), func(context.Context, store.Verdict) store.Settlement {
				all.Done()
				all.Wait()
				return settled(store.TxCommit, "done")
			}, store.DecisionExecute, "E1")
		})
	}
	done.Wait()
	must(t, first.Exec(t.Context(), "SET GLOBAL read_only = 1"))
	transacted(t, s, "moved", func(context.Context, store.Verdict) store.Settlement {
		return settled(store.TxCommit, "done")
	}, store.DecisionExecute, "37: the next request is served")
}
