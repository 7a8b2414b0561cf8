package ledger_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/onceward/onceward/reconcile/ledger"
	"github.com/onceward/onceward/store/memory"
)

func TestCompareFindsEachKind(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, provider, local, want string }{
		{name: "nothing", want: ""},
		{name: "all the same", provider: "a=1 b=2", local: "a=1 b=2", want: ""},
		{name: "missing here", provider: "a=1 b=2 c=3", local: "b=2", want: "missing here a, missing here c"},
		{name: "missing there", provider: "b=2", local: "a=1 b=2 c=3", want: "missing there a, missing there c"},
		{name: "an empty side", local: "a=1 b=2", want: "missing there a, missing there b"},
		{name: "differs", provider: "a=1 b=2", local: "a=1 b=3", want: "differs b"},
		{
			name: "duplicates there", provider: "a=1 a=2 a=3 b=1", local: "a=1 b=1",
			want: "duplicate a provider 2, duplicate a provider 3",
		},
		{name: "duplicates here, at the end", provider: "a=1", local: "a=1 a=1", want: "duplicate a local 1"},
		{
			name: "duplicates on both sides that differ", provider: "a=1 a=2", local: "a=2 a=1",
			want: "duplicate a provider 2, duplicate a local 1, differs a",
		},
		{name: "a duplicate of what is missing", provider: "a=1 a=1", want: "duplicate a provider 1, missing here a"},
		{name: "byte order", provider: "B=1 a=1 é=1", local: "B=1 a=1 é=1", want: ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var got report
			s, err := ledger.Compare(t.Context(), stream(list(test.provider), nil), stream(list(test.local), nil), got.add)
			if err != nil {
				t.Fatal(err)
			}
			words := got.take()
			if words != test.want {
				t.Errorf("found %q, want %q", words, test.want)
			}
			if n := len(got.different()); int64(n) != s.Findings() || words != "" && n != strings.Count(words, ",")+1 {
				t.Errorf("%d IDs, %d findings counted: %s", n, s.Findings(), words)
			}
		})
	}
}

func TestFindingHoldsBothEntries(t *testing.T) {
	t.Parallel()
	there := ledger.Entry{Key: "a", Value: "1 EUR", At: inside, Note: "ch_1"}
	here := ledger.Entry{Key: "a", Value: "2 EUR", At: noon, Note: "order 7"}
	var got []ledger.Finding
	collect := func(f ledger.Finding) error {
		got = append(got, f)
		return nil
	}
	_, err := ledger.Compare(t.Context(), stream([]ledger.Entry{there}, nil), stream([]ledger.Entry{here, here}, nil),
		collect)
	if err != nil || len(got) != 2 {
		t.Fatal(got, err)
	}
	duplicate := ledger.Finding{
		ID: got[0].ID, Kind: ledger.KindDuplicate, Side: ledger.SideLocal, Key: "a", Ordinal: 2,
		Local: here,
	}
	differs := ledger.Finding{ID: got[1].ID, Kind: ledger.KindDiffers, Key: "a", Provider: there, Local: here}
	if got[0] != duplicate || got[1] != differs || len(got[0].ID) != 40 || got[0].ID == got[1].ID {
		t.Errorf("%+v", got)
	}
}

// TestOrderIsNotGuessed: whatever the merge would make of it, it must not be a report.
func TestOrderIsNotGuessed(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		provider, local string
		want            ledger.OrderError
	}{
		{"b a", "a b", ledger.OrderError{Side: ledger.SideProvider, Before: "b", Key: "a"}},
		{"a b", "a b a", ledger.OrderError{Side: ledger.SideLocal, Before: "b", Key: "a"}},
		{"a a10 a9 a2", "a", ledger.OrderError{Side: ledger.SideProvider, Before: "a9", Key: "a2"}},
	} {
		var got report
		_, err := ledger.Compare(t.Context(), stream(list(test.provider), nil), stream(list(test.local), nil), got.add)
		var order *ledger.OrderError
		if !errors.As(err, &order) || *order != test.want || !errors.Is(err, ledger.ErrOrder) {
			t.Errorf("%q and %q: %v, want %v", test.provider, test.local, err, &test.want)
		}
		if message := test.want.Error(); !strings.Contains(message, `"`+test.want.Key+`" after "`+test.want.Before+`"`) {
			t.Errorf("the error does not say both keys: %s", message)
		}
	}
}

func TestCompareEndsEarly(t *testing.T) {
	t.Parallel()
	nothing := func(ledger.Finding) error { return nil }
	both := list("a=1 b=2 c=3")

	s, err := ledger.Compare(t.Context(), stream(both, nil), stream(both, errAway), nothing)
	if want := (ledger.Summary{Provider: 2, Local: 2, Matched: 2}); !errors.Is(err, errAway) || s != want {
		t.Errorf("a source that fails: %+v, %v; want %+v: the last key may not be done", s, err, want)
	}
	if err == nil || !strings.Contains(err.Error(), "local source") {
		t.Errorf("the error does not say which source failed: %v", err)
	}

	_, err = ledger.Compare(t.Context(), stream(both, nil), stream([]ledger.Entry{{Value: "1"}}, nil), nothing)
	if err == nil || !strings.Contains(err.Error(), "no key") {
		t.Errorf("an entry without a key: %v", err)
	}

	s, err = ledger.Compare(t.Context(), stream(both, nil), stream(both[:1], nil),
		func(ledger.Finding) error { return errAway })
	if want := (ledger.Summary{Provider: 1, Local: 1, Matched: 1}); !errors.Is(err, errAway) || s != want {
		t.Errorf("a report that fails: %+v, %v; want %+v", s, err, want)
	}

	ctx, cancel := context.WithCancelCause(t.Context())
	s, err = ledger.Compare(ctx, stream(both, nil), stream(both[1:], nil), func(ledger.Finding) error {
		cancel(errAway)
		return nil
	})
	if want := (ledger.Summary{Provider: 1, MissingHere: 1}); !errors.Is(err, errAway) || s != want {
		t.Errorf("a context that ends: %+v, %v; want %+v", s, err, want)
	}
}

// This file holds the comparison against one that keeps everything in maps, with and without interruptions.

// drawLedger draws a side with many duplicates, and with keys that are no text.
func drawLedger(t *rapid.T, name string) []ledger.Entry {
	entry := rapid.Custom(func(t *rapid.T) ledger.Entry {
		return ledger.Entry{
			Key: rapid.SampledFrom([]string{"a", "aa", "a\x00", "b", "c", "\xff", "\xff\x01", "\xff\x02", "é", "z"}).Draw(t,
				"key"),
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
			oneSided(entries[0], ledger.KindMissingHere, &s.MissingHere)
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
			oneSided(entries[0], ledger.KindMissingThere, &s.MissingThere)
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
		config := config(memory.New(memory.WithClock(now)), "", "", &got)
		config.Provider, config.Local = breaking(provider, nil, breaksProvider...), breaking(local, nil, breaksLocal...)
		config.Grace, config.Since, config.MinBackoff = grace, window.From.Add(grace), time.Second
		config.SaveEvery = rapid.IntRange(1, 10).Draw(t, "save every")
		s, err := run(outer, config)
		for range len(breaksProvider) + len(breaksLocal) {
			minutes.Add(1)
			if err != nil {
				s, err = run(outer, config)
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
