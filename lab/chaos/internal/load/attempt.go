package load

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/onceward/onceward/lab/chaos/internal/history"
)

// attempt sends a request once and records what came of it. With a time to leave, the client hangs up after it.
func (l *Load) attempt(ctx context.Context, op *operation, sent request, front string, leave time.Duration) {
	a := history.Attempt{
		Scope: op.scope(), Key: op.key, Kind: op.kind, Payload: op.path + " " + sent.body, Reference: sent.reference,
		Amount: sent.amount,
	}
	// An attempt that was begun is seen to its end also when the run ends, because its answer counts.
	sending := context.WithoutCancel(ctx)
	if leave > 0 {
		var cancel context.CancelFunc
		sending, cancel = context.WithTimeout(sending, leave)
		defer cancel()
	}
	a.Sent = history.Now()
	err := l.send(sending, op, sent, front, &a)
	if err == nil {
		a.Returned = history.Now()
	} else {
		a.Status, a.Code, a.Body, a.Headers, a.Replayed, a.Lost = 0, "", "", nil, false, err.Error()
		if leave > 0 && errors.Is(err, context.DeadlineExceeded) {
			l.Left.Add(1)
		}
	}
	l.keep(l.Recorder.Add(a))
	op.note(&a)
}

// keep keeps a failure to record something.
func (l *Load) keep(err error) {
	if err == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.recorded = errors.Join(l.recorded, err)
}

func (l *Load) send(ctx context.Context, op *operation, sent request, front string, a *history.Attempt) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, front+op.path, strings.NewReader(sent.body))
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+op.token)
	request.Header.Set("Idempotency-Key", op.key)
	request.Header.Set("Content-Type", "application/json")
	response, err := l.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err // a part of an answer is none
	}
	a.Status, a.Body = response.StatusCode, string(body)
	a.Replayed = response.Header.Get("Idempotent-Replayed") == "true"
	a.Headers = map[string]string{
		"Content-Type": response.Header.Get("Content-Type"), "Location": response.Header.Get("Location"),
	}
	if strings.HasPrefix(a.Headers["Content-Type"], "application/problem+json") {
		var problem struct{ Code string }
		if err := json.Unmarshal(body, &problem); err != nil {
			return err
		}
		a.Code = problem.Code
	}
	return nil
}

// note learns from an answer: one that is the application's own, and not a failure, is definitive.
func (o *operation) note(a *history.Attempt) {
	if a.Status == 0 || a.Code != "" || a.Status >= http.StatusInternalServerError {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.done = true
	if o.kind == "payment" && a.Status == http.StatusCreated {
		o.payment = strings.TrimPrefix(a.Headers["Location"], "/payments/")
	}
}
