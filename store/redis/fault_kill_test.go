package redis_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
)

// TestServerKilled kills the server again and again while clients pay: with appendfsync always nothing that was
// acknowledged is lost, and nothing is done twice.
func TestServerKilled(t *testing.T) {
	t.Parallel()
	server := servers.NewRedis(t)
	c := newCrowd(t, open(t, server.URL()))
	c.start(8)
	for range nightly.Either(3, 1) {
		c.more(t, 100)
		must(t, server.Kill())
		before := c.retried.Load()
		await.Success(t, "clients notice", func() error {
			if c.retried.Load() == before {
				return errors.New("none does")
			}
			return nil
		})
		must(t, server.Restart())
	}
	c.more(t, 100)
	c.check(t)
}

// TestServerKilledKeepsEveryState: a record is unchanged after a crash, and its owner continues.
func TestServerKilledKeepsEveryState(t *testing.T) {
	t.Parallel()
	server := servers.NewRedis(t)
	s := open(t, server.URL())
	before := make(map[string]store.Record)
	for _, op := range operations {
		must(t, op.call(t.Context(), s, op.prepare(t, s, op.name)))
		before[op.name] = look(t, s, op.name)
	}
	claim := booked(t, s, "in progress")
	must(t, server.Kill())
	must(t, server.Restart())
	await.Success(t, "the store is back", func() error {
		_, err := s.Get(t.Context(), claim.ID)
		return err
	})
	for _, op := range operations {
		if after := look(t, s, op.name); !reflect.DeepEqual(after, before[op.name]) {
			t.Errorf("S2: after %s and a crash the record is %+v, want %+v", op.name, after, before[op.name])
		}
	}
	_, err := s.Complete(t.Context(), claim, paid("in spite of the crash"))
	must(t, err)
}

// TestServerLoads: while a server reads its data at its start, calls fail as those that the store cannot do.
func TestServerLoads(t *testing.T) {
	t.Parallel()
	// Each of the keys takes a tenth of a second to load, and between them, which are a kilobyte apart, the server answers.
	// All of them would take more than a minute: the delay ends when a call has met it.
	server := servers.NewRedis(t, "key-load-delay 100000", "loading-process-events-interval-bytes 1024", "rdbcompression no")
	s := open(t, server.URL())
	var calls sync.WaitGroup
	for part := range 50 {
		calls.Go(func() {
			for i := range 20 {
				claim := booked(t, s, fmt.Sprint("key", part*20+i))
				_, err := s.Complete(t.Context(), claim, paid(strings.Repeat("done", 1000)))
				must(t, err)
			}
		})
	}
	calls.Wait()
	_, err := server.Do(t.Context(), "BGREWRITEAOF") // the delay is for keys of a snapshot, not for commands
	must(t, err)
	await.Success(t, "the snapshot is written", func() error {
		info, err := server.Info(t.Context())
		if err == nil && (info["aof_rewrite_in_progress"] != "0" || info["aof_rewrite_scheduled"] != "0") {
			err = errors.New("not yet")
		}
		return err
	})
	must(t, server.Kill())
	restarted := make(chan error, 1)
	go func() { restarted <- server.Restart() }()
	met := false
	await.Success(t, "the server has loaded", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		v, err := s.Reserve(ctx, booking("key0"))
		if err != nil {
			wantUnavailable(t, err, "LOADING")
			if strings.Contains(err.Error(), "LOADING") && !met {
				met = true
				await.Success(t, "the delay ends", func() error {
					_, err := server.Do(t.Context(), "CONFIG", "SET", "key-load-delay", "0")
					return err
				})
			}
			return err
		}
		if v.Decision != store.DecisionReplay {
			t.Errorf("I3: a server that has loaded answered %s", v.Decision)
		}
		return nil
	})
	must(t, <-restarted)
	if !met {
		t.Error("no call met LOADING")
	}
}

// TestServerHangs: a frozen server ends no call but its context does, whichever call it is; when it runs again, the
// calls that were given up have been done or not, and repeating the same call succeeds.
func TestServerHangs(t *testing.T) {
	t.Parallel()
	server := servers.NewRedis(t)
	s := open(t, server.URL())
	claims := make([]store.Claim, len(operations))
	for i, op := range operations {
		claims[i] = op.prepare(t, s, op.name)
	}
	r := booking("reserve")
	calls := map[string]func(ctx context.Context) error{
		"reserve": func(ctx context.Context) error {
			_, err := s.Reserve(ctx, r)
			return err
		},
		"get": func(ctx context.Context) error {
			_, err := s.Get(ctx, claims[0].ID)
			return err
		},
		"sweep": func(ctx context.Context) error {
			_, err := s.Sweep(ctx, 10)
			return err
		},
	}
	for i, op := range operations {
		calls[op.name] = func(ctx context.Context) error { return op.call(ctx, s, claims[i]) }
	}
	must(t, server.Pause())
	for name, call := range calls {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		var err error
		await.Return(t, name+" ends with its context, while the server hangs", func() { err = call(ctx) })
		cancel()
		wantUnavailable(t, err, name+" of a server that hangs")
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v, want the end of the context", name, err)
		}
	}
	must(t, server.Resume())
	for name, call := range calls {
		await.Success(t, "S6: "+name+" succeeds after the server went on", func() error { return call(t.Context()) })
	}
	v, err := s.Reserve(t.Context(), r)
	must(t, err)
	if v.Decision != store.DecisionExecute {
		t.Errorf("S9: the reservation again got %s", v.Decision)
	}
}

// TestDemotedServer: a server that became a replica takes no reservation and replays nothing, and its errors show it.
func TestDemotedServer(t *testing.T) {
	t.Parallel()
	server, primary := servers.NewRedis(t), servers.NewRedis(t)
	s := open(t, server.URL())
	claim := booked(t, s, "key")
	for i := range 50 {
		_, err := s.Complete(t.Context(), booked(t, s, fmt.Sprint("done", i)), paid("done"))
		must(t, err)
	}
	host, port, err := net.SplitHostPort(primary.Addr())
	must(t, err)
	must(t, primary.Kill()) // so that the server keeps its old data
	_, err = server.Do(t.Context(), "REPLICAOF", host, port)
	must(t, err)
	for _, op := range operations {
		wantUnavailable(t, op.call(t.Context(), s, claim), op.name)
	}
	_, err = s.Reserve(t.Context(), booking("other"))
	wantUnavailable(t, err, "reserve")
	var replays sync.WaitGroup
	for i := range 50 { // which are looked up together
		replays.Go(func() {
			_, err := s.Reserve(t.Context(), booking(fmt.Sprint("done", i)))
			wantUnavailable(t, err, "I3: a replay of what may have been replaced")
		})
	}
	replays.Wait()
	_, err = server.Do(t.Context(), "REPLICAOF", "NO", "ONE")
	must(t, err)
	await.Success(t, "the server takes writes again", func() error {
		_, err := s.Reserve(t.Context(), booking("other"))
		return err
	})
	if rec := look(t, s, "other"); rec.State != store.StateInProgress {
		t.Errorf("the record is %s", rec.State)
	}
}
