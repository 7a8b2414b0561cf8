package mysql_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/mysql"
	"github.com/onceward/onceward/store/storetest"
)

// TestStoreOnGalera spreads the calls over three nodes: each goes to the next one.
func TestStoreOnGalera(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts a cluster of its own")
	among := &grounds{run: t, url: func(t testing.TB) string { return servers.SharedGalera(t).DatabaseURL(t) }}
	storetest.Run(t, storetest.Harness{
		Features: storetest.Features{ConcurrentTx: true, Certifies: true},
		Open:     func(t testing.TB) storetest.Instance { return instance(t, among, mysql.Spread) },
	})
}

// TestIsolationOnANodeOfGalera: a level isolates the transactions of one node from each other as it does without the store.
// Between nodes nothing compares what was read.
func TestIsolationOnANodeOfGalera(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts a cluster of its own")
	among := &grounds{run: t, url: func(t testing.TB) string {
		return otherHosts.ReplaceAllString(servers.SharedGalera(t).DatabaseURL(t), "")
	}}
	storetest.Run(t, storetest.Harness{
		Features: storetest.Features{ConcurrentTx: true},
		Open:     func(t testing.TB) storetest.Instance { return instance(t, among) },
		Groups:   []string{"Isolation"},
	})
}

// pinned opens a store on each node of a cluster.
func pinned(t testing.TB, cluster *servers.GaleraCluster) (stores []*mysql.Store) {
	t.Helper()
	database := cluster.Database(t)
	for _, node := range cluster.Nodes() {
		stores = append(stores, openStore(t, "mysql://root@"+node.Addr()+"/"+database))
	}
	return stores
}

// TestHandleOfAnotherNodeOfGalera: a *sql.DB that leads to another node of the URL's cluster is taken.
func TestHandleOfAnotherNodeOfGalera(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts a cluster")
	cluster := servers.SharedGalera(t)
	database := cluster.Database(t)
	for _, node := range cluster.Nodes() {
		db := openAdmin(t, "mysql://root@"+node.Addr()+"/"+database)
		s, err := mysql.New(t.Context(), db, "mysql://root@"+cluster.Nodes()[0].Addr()+"/"+database, quiet)
		must(t, err)
		must(t, s.Close())
	}
}

// TestNodesRaceOnGalera: of nodes that reserve one key at once, one is granted; those that lose at their commit learn
// it (scenario 48).
func TestNodesRaceOnGalera(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts a cluster")
	stores := pinned(t, servers.SharedGalera(t))
	const keys, racers = 30, 2
	var granted, refused, failed atomic.Int64
	var crowd sync.WaitGroup
	for key := range keys {
		for _, s := range stores {
			for range racers {
				crowd.Go(func() {
					v, err := s.Reserve(t.Context(), reservation(fmt.Sprint(key)))
					switch {
					case err != nil:
						t.Errorf("a reservation: %v", err)
						failed.Add(1)
					case v.Decision == store.DecisionExecute:
						granted.Add(1)
						claim := store.Claim{ID: v.Record.ID, Attempt: v.Record.Attempt}
						if _, err := s.Complete(t.Context(), claim, answer("done")); err != nil {
							t.Errorf("a completion: %v", err)
						}
					default:
						refused.Add(1)
					}
				})
			}
		}
	}
	crowd.Wait()
	if granted.Load() != keys || refused.Load() != keys*(racers*int64(len(stores))-1) {
		t.Errorf("S1: %d grants for %d keys, %d others", granted.Load(), keys, refused.Load())
	}
	for _, s := range stores {
		wantState(t, s, "0", store.StateCompleted, "what one node has committed the others see")
	}
}

// TestQuorumLost: a node that is cut off executes nothing, one of the majority does, and all of them do again behind
// it.
func TestQuorumLost(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts a cluster of its own")
	cluster := servers.NewGalera(t)
	stores := pinned(t, cluster)
	nodes := cluster.Nodes()
	all := openStore(t, cluster.URL())
	claim := own(t, all, reservation("key"))
	for i := range stores {
		own(t, stores[i], reservation(fmt.Sprint("before ", i)))
	}
	must(t, cluster.CutOff(t.Context(), nodes[0]))
	must(t, cluster.AwaitNoQuorum(t.Context(), nodes[0]))
	if _, err := stores[0].Reserve(t.Context(), reservation("cut off")); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("L2: a reservation without a quorum returned %v", err)
	}
	if rec, err := stores[0].Get(t.Context(), idOf("before 0")); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("scenario 13: a node that may be behind was asked: %s, %v", rec.State, err)
	}
	own(t, stores[1], reservation("majority"))
	_, err := all.Complete(t.Context(), claim, answer("done"))
	must(t, err)
	must(t, cluster.Rejoin(t.Context(), nodes[0]))
	must(t, cluster.AwaitReady(t.Context()))
	wantState(t, stores[0], "majority", store.StateInProgress, "it has what the majority has")
	own(t, stores[0], reservation("cut off"))

	for _, node := range nodes[1:] {
		must(t, node.Kill())
	}
	must(t, cluster.AwaitNoQuorum(t.Context(), nodes[0]))
	if _, err := all.Reserve(t.Context(), reservation("alone")); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("L2: a reservation without a quorum returned %v", err)
	}
	must(t, cluster.Bootstrap(t.Context(), nodes[0]))
	must(t, cluster.AwaitReady(t.Context()))
	own(t, all, reservation("alone"))
	wantState(t, all, "key", store.StateCompleted, "E7")
}

// TestTransactionsRaceOnGalera: the nodes know nothing of each other's locks, so handlers of one key may run on several
// of them. One is committed; those that are refused at their commit are decided again, and replay it (scenario 48). With
// the floor of tokens ahead of all clocks, as where they were set back, no clock tells their tokens apart.
func TestTransactionsRaceOnGalera(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts a cluster")
	cluster := servers.SharedGalera(t)
	database := cluster.Database(t)
	var stores []*mysql.Store
	for _, node := range cluster.Nodes() {
		stores = append(stores, openStore(t, "mysql://root@"+node.Addr()+"/"+database))
	}
	db := openAdmin(t, "mysql://root@"+cluster.Nodes()[0].Addr()+"/"+database)
	exec(t, db, `CREATE TABLE business (value VARCHAR(255) NOT NULL) ENGINE = InnoDB`)
	const batches, batch, atOnce = 20, 1000, 16
	var winners []string
	for i := range batches {
		if i == batches/2 {
			exec(t, db, `UPDATE onceward_meta SET value = 1 << 62 WHERE name = 'max_removed_attempt'`)
		}
		won := make([]string, batch)
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			limit := make(chan struct{}, atOnce)
			var crowd sync.WaitGroup
			for key := range batch {
				limit <- struct{}{}
				crowd.Go(func() {
					defer func() { <-limit }()
					won[key] = raceOnNodes(t, stores, fmt.Sprint(i*batch+key))
				})
			}
			crowd.Wait()
		})
		winners = append(winners, won...)
	}
	stored := column(t, db, `SELECT value FROM business`)
	slices.Sort(stored)
	slices.Sort(winners)
	if !slices.Equal(stored, winners) {
		t.Errorf("I1: %d keys have %d rows, and not those of the callers that were answered as executed", len(winners),
			len(stored))
	}
}

// raceOnNodes runs the transaction of one key on all nodes at once, and returns the row of the caller that was answered
// as executed.
func raceOnNodes(t *testing.T, stores []*mysql.Store, key string) (winner string) {
	rows := make([]string, len(stores))
	bodies := make(map[string]bool)
	var mu sync.Mutex
	var crowd sync.WaitGroup
	for i, s := range stores {
		rows[i] = fmt.Sprint(key, " on node ", i)
		crowd.Go(func() {
			v, err := s.Transact(t.Context(), reservation(key), func(ctx context.Context, _ store.Verdict) store.Settlement {
				if err := insert(ctx, rows[i]); err != nil {
					return settled(store.TxRollback, "")
				}
				return settled(store.TxCommit, rows[i])
			})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				t.Errorf("I4: %v", err)
			case v.Decision == store.DecisionExecute:
				if winner != "" {
					t.Errorf("I1: %q and %q were answered as executed", winner, rows[i])
				}
				winner = rows[i]
				fallthrough
			case v.Decision == store.DecisionReplay:
				bodies[string(v.Record.Response.Body)] = true
			case v.Decision != store.DecisionInProgress:
				t.Errorf("S1: %s", v.Decision)
			}
		})
	}
	crowd.Wait()
	if len(bodies) != 1 {
		t.Errorf("I3: key %s has the answers %v", key, bodies)
	}
	return winner
}
