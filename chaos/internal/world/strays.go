package world

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/onceward/onceward/chaos/internal/history"
	"github.com/onceward/onceward/internal/provider"
)

// Strays are charges that nobody here has asked for, put into the acquirer's ledger for the comparison to find. They
// are there only if the store's clock is left alone: windows end by clocks, and promise nothing where these are hours
// apart.
const (
	stray  = "stray-"
	strays = 3
)

// setsClock reports whether the store's clock is set in this world.
func (w *World) setsClock() bool {
	return slices.ContainsFunc(w.Faults(), func(f Fault) bool { return strings.HasPrefix(f.Name, "clock-") })
}

// plantStrays puts them into the ledger. One that the provider does not take, as it misbehaves, is none.
func (w *World) plantStrays(ctx context.Context) {
	if w.setsClock() {
		return
	}
	acquirer := &provider.Client{URL: w.acquirer.URL()}
	for i := range strays {
		name := fmt.Sprintf("%s%s%d", w.window, stray, i)
		_, _ = acquirer.Charge(ctx, name, provider.ChargeRequest{
			Amount: 1, Currency: "EUR",
			Reference: name,
		}) // the ledger tells
	}
}

// straysFound reports whether the comparison has found them all.
func (w *World) straysFound() (bool, error) {
	if w.setsClock() {
		return true, nil
	}
	journals, err := w.Journals()
	if err != nil {
		return false, err
	}
	run, err := history.ReadWindow(journals...)
	if err != nil {
		return false, err
	}
	if err := w.harvestLedger("acquirer", "charges", run, nil); err != nil {
		return false, err
	}
	for i := range run.Effects {
		e := &run.Effects[i]
		if e.Stray && !slices.ContainsFunc(run.Findings, func(f history.Finding) bool { return f.Key == e.ID }) {
			return false, nil
		}
	}
	return true, nil
}
