package postgres_test

import (
	"context"
	"crypto/rand"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// TestLargeAnswersBothWays: a batch may hold more answers to be stored than the server takes before it is listened to,
// and more answers to be replayed than it can send before it is done with the others.
func TestLargeAnswersBothWays(t *testing.T) {
	t.Parallel()
	const replays, completions, size = 12, 3, 1 << 20
	url := servers.Postgres(t).SchemaURL(t)
	s := openConfigured(t, url, func(c *pgxpool.Config) {
		c.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			if small, ok := conn.(interface {
				SetReadBuffer(bytes int) error
				SetWriteBuffer(bytes int) error
			}); ok {
				must(t, small.SetReadBuffer(64<<10))
				must(t, small.SetWriteBuffer(64<<10))
			}
			return conn, nil
		}
	}, postgres.OneLane(), postgres.LockTimeout("1h"))
	body := make([]byte, size)
	_, _ = rand.Read(body) // what is text would be stored in fewer bytes
	settled, owned := keys("settled", replays), make([]store.Claim, completions)
	other := openStore(t, url) // or the server would give the connection more room than a new one has
	for _, key := range settled {
		complete(t, other, own(t, other, reservation(key)), string(body))
	}
	for i, key := range keys("owned", completions) {
		owned[i] = own(t, other, reservation(key))
	}
	letGo := holdRecord(t, s, url, own(t, s, reservation("held")))
	ended := crowd(t.Context(), replays+completions, func(ctx context.Context, i int) {
		if i < replays {
			v, err := s.Reserve(ctx, reservation(settled[i]))
			if err != nil || v.Decision != store.DecisionReplay || len(v.Record.Response.Body) != size {
				t.Errorf("I3: a replay got (%s, %d bytes, %v)", v.Decision, len(v.Record.Response.Body), err)
			}
			return
		}
		if _, err := s.Complete(ctx, owned[i-replays], answer(string(body))); err != nil {
			t.Errorf("E2: a completion got %v", err)
		}
	})
	letGo()
	ended()
}

// TestOneRecordInOneBatch: where a heartbeat and the answer of one attempt travel together, the heartbeat is not told
// that its lease is lost, and a duplicate that travels with them gets the answer.
func TestOneRecordInOneBatch(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	s := openConfigured(t, url, func(*pgxpool.Config) {}, postgres.OneLane(),
		postgres.LockTimeout("1h"))
	claim := own(t, s, reservation("one"))
	letGo := holdRecord(t, s, url, own(t, s, reservation("held")))
	ended := crowd(t.Context(), 3, func(ctx context.Context, i int) {
		switch i {
		case 0:
			if _, err := s.Complete(ctx, claim, answer("done")); err != nil {
				t.Errorf("E2: the completion got %v", err)
			}
		case 1:
			if err := s.Extend(ctx, claim, time.Minute); err != nil {
				t.Errorf("S5: the heartbeat got %v", err)
			}
		default:
			if v, err := s.Reserve(ctx, reservation("one")); err != nil || v.Decision != store.DecisionReplay {
				t.Errorf("I3: the duplicate got (%s, %v), want the answer", v.Decision, err)
			}
		}
	})
	letGo()
	ended()
}

// holdRecord keeps the one lane of a store busy with the completion of a record that is locked, until it is let go.
func holdRecord(t testing.TB, s *postgres.Store, url string, claim store.Claim) (letGo func()) {
	t.Helper()
	tx, err := openAdmin(t, url).Begin(t.Context())
	must(t, err)
	_, err = tx.Exec(t.Context(), `SELECT FROM onceward_record WHERE id = $1 FOR UPDATE`, s.RecordID(claim.ID))
	must(t, err)
	ended := crowd(t.Context(), 1, func(ctx context.Context, _ int) {
		if _, err := s.Complete(ctx, claim, answer("held")); err != nil {
			t.Errorf("the completion that waited for a lock got %v", err)
		}
	})
	awaitLockWait(t, url)
	return func() {
		must(t, tx.Rollback(context.Background()))
		ended()
	}
}
