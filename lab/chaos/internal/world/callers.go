package world

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/onceward/onceward/client"
	"github.com/onceward/onceward/lab/chaos/internal/history"
	"github.com/onceward/onceward/lab/chaos/internal/node"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/outbox/httpcall"
)

// callers is how many callers with an outbox there are.
const callers = 2

// startCallers starts the callers. Their stores are in PostgreSQL if that is the store, and in files otherwise.
func (w *World) startCallers(ctx context.Context) error {
	for i := range callers {
		name := fmt.Sprintf("caller-%d", i+1)
		own := filepath.Join(w.Dir, name+".db")
		direct := own
		if w.Store == "postgres" {
			own, direct = w.nodeURL(), w.database.direct()
		}
		p := w.process(name, node.Settings{Caller: &node.Caller{
			Store: own, Heard: filepath.Join(w.Dir, name+".heard"), Fronts: w.Fronts(), Plain: w.Plain(),
		}})
		w.callers = append(w.callers, p)
		if err := p.Start(); err != nil {
			return err
		}
		opened, err := node.OpenCallerStore(ctx, direct, node.CallerPrefix(name), httpcall.Config{})
		if err != nil {
			return err
		}
		w.calls = append(w.calls, opened)
	}
	return nil
}

// letCall starts each caller again: to order in the window, or only to finish what it has ordered.
func (w *World) letCall(orders bool) error {
	var errs []error
	for _, p := range w.callers {
		errs = append(errs, p.Restart(0, func(p *Process) {
			changed := *p.settings.Caller
			changed.Window, changed.Orders = w.window, orders
			p.settings.Caller = &changed
		}))
	}
	return errors.Join(errs...)
}

// openCalls counts what callers have not been told of.
func (w *World) openCalls(ctx context.Context) (open int, err error) {
	for _, own := range w.calls {
		stats, err := own.MessageStats(ctx)
		if err != nil {
			return open, err
		}
		open += stats.Waiting
	}
	return open, nil
}

// RecordCalls records the operations of the callers, as their outboxes have them: that something was sent, and what
// the caller was answered. When it was sent nothing tells, so that it may have been at any time of the window.
func (w *World) RecordCalls(ctx context.Context, r *history.Recorder) error {
	w.clock.Lock()
	began := w.steps[0].Began
	w.clock.Unlock()
	for i, own := range w.calls {
		heard, err := os.ReadFile(w.callers[i].settings.Caller.Heard)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		times := make(map[string]int)
		for line := range strings.Lines(string(heard)) {
			times[strings.TrimSuffix(line, "\n")]++
		}
		for filter := (outbox.Filter{Topic: node.CallerTopic, Limit: 500}); ; {
			page, err := own.Messages(ctx, filter)
			if err != nil {
				return err
			}
			for i := range page {
				key := page[i].DownstreamKey
				if !strings.HasPrefix(key, w.window+"call-") {
					continue // it is of an earlier window
				}
				if err := recordCall(r, &page[i], began, times[key]); err != nil {
					return err
				}
			}
			if len(page) < filter.Limit {
				break
			}
			filter.After = page[len(page)-1].ID
		}
	}
	return nil
}

// recordCall records one operation: an attempt without an answer, which stands for all that had none, and the answer.
func recordCall(r *history.Recorder, e *outbox.Entry, began int64, heard int) error {
	o, err := httpcall.OperationOf(e)
	if err != nil {
		return err
	}
	about, err := node.CallOf(&o)
	if err != nil {
		return fmt.Errorf("the operation %s of a caller: %w", o.Key, err)
	}
	target, err := url.Parse(o.URL)
	if err != nil {
		return err
	}
	lost := history.Attempt{
		Scope: about.Account, Key: o.Key, Kind: about.Kind, Payload: target.Path + " " + string(o.Body),
		Reference: about.Reference, Amount: about.Amount, Sent: began, Lost: "the caller tells of its answer alone",
	}
	errs := []error{
		r.AddCall(history.Call{Scope: about.Account, Key: o.Key, State: stateOf(e, &o), Heard: heard}), r.Add(lost),
	}
	if o.Outcome == client.OutcomeAnswered {
		errs = append(errs, r.Add(answered(lost, &o.Answer)))
	}
	return errors.Join(errs...)
}

// stateOf is how far an operation is.
func stateOf(e *outbox.Entry, o *httpcall.Operation) string {
	switch {
	case e.State == outbox.StateDead:
		return "unknown"
	case e.State == outbox.StateDone:
		return o.Outcome.String()
	default:
		return "pending"
	}
}

// answered is an attempt with its answer.
func answered(a history.Attempt, answer *httpcall.Answer) history.Attempt {
	a.Lost, a.Returned, a.Status, a.Body = "", history.Now(), answer.Status, string(answer.Body)
	a.Replayed = answer.Header.Get("Idempotent-Replayed") == "true"
	a.Headers = map[string]string{
		"Content-Type": answer.Header.Get("Content-Type"), "Location": answer.Header.Get("Location"),
	}
	var problem struct{ Code string }
	if strings.HasPrefix(a.Headers["Content-Type"], "application/problem+json") &&
		json.Unmarshal(answer.Body, &problem) == nil {
		a.Code = problem.Code
	}
	return a
}

// forgetCalls forgets what was checked.
func (w *World) forgetCalls(ctx context.Context) error {
	for i, own := range w.calls {
		if err := os.Truncate(w.callers[i].settings.Caller.Heard, 0); err != nil {
			return err
		}
		for {
			purged, err := own.PurgeMessages(ctx, 0, 1000)
			if err != nil {
				return err
			}
			if purged == 0 {
				break
			}
		}
	}
	return nil
}
