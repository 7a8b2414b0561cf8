// Package rehearsal runs the reference payments system as in production, only
// faster and under worse conditions: a provider that fails, clients that lose
// their connections, processes that are killed. At the end it counts the results.
//
// `go run -C demo .` and `onceward demo` share this package. The former supports only SQLite; the latter adds
// the other stores and metrics: see [Program]. The package is for these two programs, and has no stable API.
package rehearsal

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/onceward/onceward/examples/provider"
)

// world is the environment of the system: its data, and its provider.
type world struct {
	program  Program
	config   Config
	dir      directory
	place    Place
	provider *provider.Server
	node     nodeConfig
}

// Run runs a demo to its end, or until the first context ends. In the latter case it shuts down in
// order and lets work in progress finish, unless the second context, hurry, ends too. It always
// cleans up. The error is not nil if the demo could not run, was interrupted, or found a problem.
func Run(ctx, hurry context.Context, program Program, config Config, out io.Writer) error {
	if err := config.check(); err != nil {
		return err
	}
	w := &world{program: program, config: config}
	var plan *plan
	if config.NoLoad {
		fmt.Fprintln(out, "Onceward demo: a payments system that does each thing once.")
	} else {
		plan = w.plan(out)
	}
	err := w.open(ctx)
	switch {
	case err != nil:
	case config.NoLoad:
		err = w.serve(ctx, hurry, out)
	default:
		err = w.perform(ctx, hurry, plan, out)
	}
	if err != nil && ctx.Err() != nil {
		err = errInterrupted // all other errors follow from this
	}
	return errors.Join(err, w.close())
}

// open prepares everything except the system itself. After an error, the caller still calls close.
func (w *world) open(ctx context.Context) (err error) {
	if w.dir, err = openDirectory(w.config.Dir); err != nil {
		return err
	}
	secret, err := w.dir.secret("secret")
	if err != nil {
		return err
	}
	hookSecret, err := w.dir.secret("webhook-secret")
	if err != nil {
		return err
	}
	if w.place, err = w.prepare(ctx, secret); err != nil {
		return err
	}
	faults := provider.Faults{}
	if !w.config.NoLoad {
		faults = providerFaults(w.config.Seed)
	}
	// The provider must outlive the system, so it does not end with this context.
	w.provider, err = provider.Start(context.WithoutCancel(ctx), provider.Config{
		LedgerPath: w.ledger(), Dedup: true, Faults: faults,
	})
	if err != nil {
		return err
	}
	w.node = nodeConfig{
		Place: w.place, Addr: w.config.Addr, Secret: secret, Provider: w.provider.URL, WebhookSecret: string(hookSecret),
		Timing: w.config.timing(), InFlight: w.config.InFlight, Unprotected: w.config.Unprotected,
	}
	if w.config.Store == "" {
		w.node.File = w.dir.file("payments.db")
	}
	return nil
}

func (w *world) ledger() string { return w.dir.file("ledger.jsonl") }

// aim sets the URL to which the provider sends its webhooks.
func (w *world) aim(url string) {
	w.provider.SetWebhook(provider.Webhook{URL: url, Secret: w.node.WebhookSecret})
}

// close closes the provider, and removes what is not to be kept.
func (w *world) close() error {
	var errs []error
	if w.provider != nil {
		errs = append(errs, w.provider.Close())
	}
	if w.dir.temporary {
		errs = append(errs, w.place.remove())
	}
	return errors.Join(append(errs, w.dir.close())...)
}

// serve serves until the context ends.
func (w *world) serve(ctx, hurry context.Context, out io.Writer) error {
	n, err := startNode(ctx, w.program, w.node)
	if err != nil {
		return err
	}
	w.aim(n.address() + "/events")
	if err := w.guide(out, n.address()); err != nil {
		return errors.Join(err, n.close(hurry))
	}
	select {
	case <-ctx.Done():
	case err = <-n.failed():
	}
	w.provider.ClearFaults() // otherwise a request that waits for the provider would delay the end
	return errors.Join(err, n.close(hurry))
}
