package ledger_test

import (
	"cmp"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/onceward/onceward/reconcile/ledger"
	"github.com/onceward/onceward/store/memory"
)

// This file holds the comparison against one that keeps everything in maps, with and without interruptions.

// drawLedger draws a side with many duplicates, and with keys that are no text.
func drawLedger(t *rapid.T, name string) []ledger.Entry {
	entry := rapid.Custom(func(t *rapid.T) ledger.Entry {
		return ledger.Entry{
			Key:   rapid.SampledFrom([]string{"a", "aa", "a\x00", "b", "c", "\xff", "\xff\x01", "\xff\x02", "é", "z"}).Draw(t, "key"),
			Value: rapid.SampledFrom([]string{"1", "2"}).Draw(t, "value"),
			At:    window.From.Add(time.Duration(rapid.IntRange(0, 59).Draw(t, "minute")) * time.Minute),
		}
	})
	entries := rapid.SliceOfN(entry, 0, 20).Draw(t, name)
	slices.SortStableFunc(entries, func(a, b ledger.Entry) int { return cmp.Compare(a.Key, b.Key) })
	return entries
}

const grace = 10 * time.Minute

// naive compares the two sides by looking everything up.
func naive(provider, local []ledger.Entry) (words []string, s ledger.Summary) {
	there, here := make(map[string][]ledger.Entry), make(map[string][]ledger.Entry)
	for _, e := range provider {
		there[e.Key] = append(there[e.Key], e)
	}
	for _, e := range local {
		here[e.Key] = append(here[e.Key], e)
	}
	s.Provider, s.Local = int64(len(provider)), int64(len(local))
	oneSided := func(first ledger.Entry, kind ledger.Kind, count *int64) {
		if since := first.At.Sub(window.From); since < grace || since >= time.Hour-grace {
			s.AtEdge++
			return
		}
		*count++
		words = append(words, fmt.Sprint(kind, " ", first.Key))
	}
	for key, entries := range there {
		for _, e := range entries[1:] {
			s.Duplicates++
			words = append(words, fmt.Sprint("duplicate ", key, " provider ", e.Value))
		}
		if others := here[key]; len(others) == 0 {
			oneSided(entries[0], ledger.MissingHere, &s.MissingHere)
		} else if others[0].Value != entries[0].Value {
			s.Differs++
			words = append(words, "differs "+key)
		} else {
			s.Matched++
		}
	}
	for key, entries := range here {
		for _, e := range entries[1:] {
			s.Duplicates++
			words = append(words, fmt.Sprint("duplicate ", key, " local ", e.Value))
		}
		if len(there[key]) == 0 {
			oneSided(entries[0], ledger.MissingThere, &s.MissingThere)
		}
	}
	slices.Sort(words)
	return words, s
}

// TestRunAgainstTheModel interrupts each run a few times, anywhere: what it comes to must be the same, and must be what
// the naive comparison finds.
func TestRunAgainstTheModel(t *testing.T) {
	t.Parallel()
	outer := t
	rapid.Check(t, func(t *rapid.T) {
		provider, local := drawLedger(t, "provider"), drawLedger(t, "local")
		places := func(name string, n int) []int {
			places := rapid.SliceOfN(rapid.IntRange(0, 20), 0, 3).Draw(t, name)
			slices.Sort(places)
			return slices.DeleteFunc(places, func(i int) bool { return i >= n })
		}
		breaksProvider, breaksLocal := places("provider breaks at", len(provider)), places("local breaks at", len(local))
		var minutes atomic.Int64 // read by heartbeats too
		now := func() time.Time {
			return noon.Add(ledger.DefaultSettle + time.Duration(minutes.Load())*time.Minute)
		}
		var got report
		cfg := config(memory.New(memory.WithClock(now)), "", "", &got)
		cfg.Provider, cfg.Local = breaking(provider, nil, breaksProvider...), breaking(local, nil, breaksLocal...)
		cfg.Grace, cfg.Since, cfg.MinBackoff = grace, window.From.Add(grace), time.Second
		cfg.SaveEvery = rapid.IntRange(1, 10).Draw(t, "save every")
		s, err := run(outer, cfg)
		for range len(breaksProvider) + len(breaksLocal) {
			minutes.Add(1)
			if err != nil {
				s, err = run(outer, cfg)
			}
		}
		words, want := naive(provider, local)
		want.Run = "test " + window.String()
		if err != nil || s != want {
			t.Errorf("%+v, %v; want %+v", s, err, want)
		}
		if found := got.different(); !slices.Equal(found, words) {
			t.Errorf("found %q, want %q", found, words)
		}
		if s.Provider+s.Local != 2*(s.Matched+s.Differs)+s.MissingHere+s.MissingThere+s.AtEdge+s.Duplicates {
			t.Errorf("the counts do not add up: %+v", s)
		}
	})
}
