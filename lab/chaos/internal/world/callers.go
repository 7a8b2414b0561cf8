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
)

// callers is how many callers with a journal there are.
const callers = 2

// startCallers starts the callers. Their journals are in PostgreSQL if that is the store, and in files otherwise.
func (w *World) startCallers(ctx context.Context) error {
	for i := range callers {
		name := fmt.Sprintf("caller-%d", i+1)
		journal := filepath.Join(w.Dir, name+".db")
		direct := journal
		if w.Store == "postgres" {
			journal, direct = w.database.url(), w.database.direct()
		}
		p := w.process(name, node.Settings{Caller: &node.Caller{
			Journal: journal, Heard: filepath.Join(w.Dir, name+".heard"), Fronts: w.Fronts(), Plain: w.Plain(),
		}})
		w.callers = append(w.callers, p)
		if err := p.Start(); err != nil {
			return err
		}
		opened, err := node.OpenCallerJournal(ctx, direct, node.CallerPrefix(name))
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
	for _, journal := range w.calls {
		left, err := journal.List(ctx, client.Filter{Open: true, Limit: 1000})
		if err != nil {
			return open, err
		}
		for i := range left {
			if !left[i].Told {
				open++
			}
		}
	}
	return open, nil
}

// RecordCalls records the operations of the callers, as their journals have them: that something was sent, and what
// the caller was answered. When it was sent nothing tells, so that it may have been at any time of the window.
func (w *World) RecordCalls(ctx context.Context, r *history.Recorder) error {
	w.clock.Lock()
	began := w.steps[0].Began
	w.clock.Unlock()
	for i, journal := range w.calls {
		heard, err := os.ReadFile(w.callers[i].settings.Caller.Heard)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		times := make(map[string]int)
		for line := range strings.Lines(string(heard)) {
			times[strings.TrimSuffix(line, "\n")]++
		}
		filter := client.Filter{After: w.window + "call-", Limit: 500}
		for {
			page, err := journal.List(ctx, filter)
			if err != nil {
				return err
			}
			for i := range page {
				if err := recordCall(r, &page[i], began, times[page[i].Key]); err != nil {
					return err
				}
			}
			if len(page) < filter.Limit {
				break
			}
			filter.After = page[len(page)-1].Key
		}
	}
	return nil
}

// recordCall records one operation: an attempt without an answer, which stands for all that had none, and the answer.
func recordCall(r *history.Recorder, o *client.Operation, began int64, heard int) error {
	about, err := node.CallOf(o)
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
		r.AddCall(history.Call{Scope: about.Account, Key: o.Key, State: o.State.String(), Heard: heard}), r.Add(lost),
	}
	if o.State == client.StateAnswered {
		errs = append(errs, r.Add(answered(lost, &o.Answer)))
	}
	return errors.Join(errs...)
}

// answered is an attempt with its answer.
func answered(a history.Attempt, answer *client.Answer) history.Attempt {
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
	for i, journal := range w.calls {
		if err := os.Truncate(w.callers[i].settings.Caller.Heard, 0); err != nil {
			return err
		}
		for {
			purged, err := journal.Purge(ctx, 0, 1000)
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
