package provider

import (
	"context"
	"net/http"
	"strconv"
)

// SetFaults replaces the script. Requests that an earlier rule holds remain held, and can still be released by name.
func (p *Provider) SetFaults(f Faults) error { return p.script.set(f) }

// ClearFaults removes all rules and lets all held requests continue. The names of gates can then be used again.
func (p *Provider) ClearFaults() { p.script.clear() }

// Await returns when the named rule has struck count times. The requests may still be held. The effect of a rule that
// strikes after the effect has happened by then. Await returns the cause of the context if the context ends first.
func (p *Provider) Await(ctx context.Context, name string, count int) error {
	return p.script.await(ctx, name, count)
}

// Release lets the requests continue that the named rule holds,
// now and later: a released name holds nothing until ClearFaults.
func (p *Provider) Release(name string) { p.script.release(name) }

// Stats returns how often each kind of fault has struck since the start of the
// provider, including rules that were replaced. Kinds that have not struck are missing.
func (p *Provider) Stats() map[Kind]int { return p.script.stats() }

// SetWebhook sets the webhook for all further events, including events that wait for another attempt. It
// exists in addition to Config because a receiver often needs to know the provider before it can listen.
func (p *Provider) SetWebhook(w Webhook) { p.courier.aim(w) }

// The following handlers do the same over HTTP, so that a test can control a provider in another process.

func (p *Provider) putFaults(w http.ResponseWriter, r *http.Request) {
	var faults Faults
	if err := readJSON(r, &faults); err != nil {
		p.write(w, failed(err))
		return
	}
	if err := p.SetFaults(faults); err != nil {
		p.write(w, failed(invalid(err.Error())))
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (p *Provider) deleteFaults(w http.ResponseWriter, _ *http.Request) {
	p.ClearFaults()
	w.WriteHeader(http.StatusNoContent)
}

func (p *Provider) getStats(w http.ResponseWriter, _ *http.Request) {
	p.write(w, answer{status: http.StatusOK, body: p.Stats()})
}

func (p *Provider) putWebhook(w http.ResponseWriter, r *http.Request) {
	var hook Webhook
	if err := readJSON(r, &hook); err != nil {
		p.write(w, failed(err))
		return
	}
	p.SetWebhook(hook)
	w.WriteHeader(http.StatusNoContent)
}

func (p *Provider) getArrived(w http.ResponseWriter, r *http.Request) {
	count := 1
	if text := r.URL.Query().Get("count"); text != "" {
		var err error
		if count, err = strconv.Atoi(text); err != nil {
			p.write(w, failed(invalid("count must be a number")))
			return
		}
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(p.life, cancel)()
	if err := p.Await(ctx, r.PathValue("name"), count); err != nil {
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(http.StatusNoContent)
}

func (p *Provider) postRelease(w http.ResponseWriter, r *http.Request) {
	p.Release(r.PathValue("name"))
	w.WriteHeader(http.StatusNoContent)
}
