// Package demo runs the reference payments system the way it lives in production, only faster and under worse
// conditions: a provider that fails, clients that lose their connections, processes that are killed. At the end it
// counts.
package demo

import (
	"context"
	"errors"
	"io"

	"github.com/onceward/onceward/examples/provider"
)

// world is what stands around the system: its data, and its provider.
type world struct {
	config   Config
	dir      directory
	store    demoStore
	provider *provider.Server
	node     nodeConfig
}

// Run runs a demo to its end, or until the first context ends: then it ends in order, and lets what is under way
// finish, unless the second one, hurry, ends too. It cleans up in any case. The error is not nil if the demo could not
// run, was interrupted, or found something broken.
func Run(ctx, hurry context.Context, config Config, out io.Writer) error {
	if err := config.check(); err != nil {
		return err
	}
	w, err := openWorld(ctx, config)
	switch {
	case err != nil:
	case config.NoLoad:
		err = w.serve(ctx, hurry, out)
	default:
		err = w.perform(ctx, hurry, out)
	}
	if err != nil && ctx.Err() != nil {
		err = errInterrupted // all else follows from it
	}
	return errors.Join(err, w.close())
}

// openWorld prepares everything but the system itself. On an error it returns what there is, to be closed.
func openWorld(ctx context.Context, config Config) (w *world, err error) {
	w = &world{config: config}
	if w.dir, err = openDirectory(config.Dir); err != nil {
		return w, err
	}
	secret, err := w.dir.secret("secret")
	if err != nil {
		return w, err
	}
	hookSecret, err := w.dir.secret("webhook-secret")
	if err != nil {
		return w, err
	}
	if w.store, err = openStore(ctx, config.Store, w.dir, secret); err != nil {
		return w, err
	}
	faults := provider.Faults{}
	if !config.NoLoad {
		faults = providerFaults(config.Seed)
	}
	// The provider ends after the system, whatever ends that.
	w.provider, err = provider.Start(context.WithoutCancel(ctx), provider.Config{
		LedgerPath: w.ledger(), Dedup: true, Faults: faults,
	})
	if err != nil {
		return w, err
	}
	w.node = nodeConfig{
		Store: w.store.url, Items: w.store.items, Addr: config.Addr, Secret: secret, Provider: w.provider.URL, WebhookSecret: string(hookSecret),
		Timing: config.timing(), InFlight: config.InFlight, Unprotected: config.Unprotected,
	}
	return w, nil
}

func (w *world) ledger() string { return w.dir.file("ledger.jsonl") }

// aim sends the provider's webhooks to a URL.
func (w *world) aim(url string) {
	w.provider.SetWebhook(provider.Webhook{URL: url, Secret: w.node.WebhookSecret})
}

// close removes what is not to be kept.
func (w *world) close() error {
	var errs []error
	if w.provider != nil {
		errs = append(errs, w.provider.Close())
	}
	if w.dir.temporary {
		errs = append(errs, w.store.remove())
	}
	return errors.Join(append(errs, w.dir.close())...)
}

// serve serves until the context ends.
func (w *world) serve(ctx, hurry context.Context, out io.Writer) error {
	n, err := startNode(ctx, w.node)
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
	w.provider.ClearFaults() // or a request that waits for the provider would hold up the end
	return errors.Join(err, n.close(hurry))
}
