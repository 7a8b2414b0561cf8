package client_test

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/client"
)

// oneOperation is a journal with one operation. Each question to it hangs as often as it is told.
type oneOperation struct {
	client.Journal
	hosts, claim, settle atomic.Int64 // how often it hangs

	mu        sync.Mutex
	operation client.Operation
	settled   []client.Settlement
}

func newOneOperation() *oneOperation {
	return &oneOperation{operation: client.Operation{
		Key: "a", Method: http.MethodPost, URL: "http://payments.test/payments", Header: http.Header{},
	}}
}

// hangs hangs until the context ends, as a connection does whose other end has lost its power.
func hangs(ctx context.Context, times *atomic.Int64) error {
	if times.Add(-1) < 0 {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (j *oneOperation) DueHosts(ctx context.Context) ([]string, error) {
	if err := hangs(ctx, &j.hosts); err != nil {
		return nil, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.operation.State != client.StatePending || time.Now().Before(j.operation.Due) {
		return nil, nil
	}
	return []string{"payments.test"}, nil
}

func (j *oneOperation) Claim(
	ctx context.Context, _ string, _ int, lease time.Duration,
) ([]client.Claimed, error) {
	if err := hangs(ctx, &j.claim); err != nil {
		return nil, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.operation.Attempts++
	j.operation.Due = time.Now().Add(lease)
	if j.operation.FirstSent.IsZero() {
		j.operation.FirstSent = time.Now()
	}
	return []client.Claimed{{Operation: j.operation, Token: 1, Now: time.Now()}}, nil
}

func (j *oneOperation) Settle(ctx context.Context, _ client.Lease, s client.Settlement) error {
	if err := hangs(ctx, &j.settle); err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.operation.State, j.settled = s.State, append(j.settled, s)
	return nil
}

// TestAJournalThatHangs is asked again, on another connection: the worker does not hang with it, and what it has sent
// is written down before another sends it again.
func TestAJournalThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		j := newOneOperation()
		for _, times := range []*atomic.Int64{&j.hosts, &j.claim, &j.settle} {
			times.Store(1)
		}
		service := &script{lines: []line{created}}
		transport, err := client.New(client.Config{Base: service})
		if err != nil {
			t.Fatal(err)
		}
		w, err := client.NewWorker(j, client.WorkerConfig{Transport: transport, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := w.Run(ctx); err != nil {
			t.Error(err)
		}
		if len(service.sent) != 1 || len(j.settled) != 1 || j.settled[0].State != client.StateAnswered {
			t.Errorf("it was sent %d times, and settled with %+v", len(service.sent), j.settled)
		}
	})
}

// TestNoAnswerInTheLog: what a service says may be personal, and is for the journal alone.
func TestNoAnswerInTheLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		j := newOneOperation()
		j.operation.LastError, j.operation.FirstSent = `status 502: "Alice Smith"`, time.Now().Add(-24*time.Hour)
		var log strings.Builder
		w, err := client.NewWorker(j, client.WorkerConfig{
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		if report, err := w.RunOnce(t.Context()); err != nil || report.Unknown != 1 {
			t.Fatal(report, err)
		}
		if !strings.Contains(j.settled[0].Error, "Alice") || log.Len() == 0 || strings.Contains(log.String(), "Alice") {
			t.Errorf("%s was logged of %q", log.String(), j.settled[0].Error)
		}
	})
}
