package part_test

import (
	"context"
	"slices"
	"testing"

	"github.com/onceward/onceward/internal/part"
)

// partsOf asks for a name several times.
func partsOf(ctx context.Context, names ...string) (got []string) {
	for _, name := range names {
		got = append(got, part.Name(ctx, name))
	}
	return got
}

func wantParts(t *testing.T, rule string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: the parts are %q, want %q", rule, got, want)
	}
}

// TestPartsWithoutAnOperation: there is nothing to count in.
func TestPartsWithoutAnOperation(t *testing.T) {
	t.Parallel()
	wantParts(t, "no operation", partsOf(t.Context(), "mail", "mail"), "mail", "mail")
}

// TestPartsCount: a name that is asked for again gets a number, and other names are not affected.
func TestPartsCount(t *testing.T) {
	t.Parallel()
	ctx := part.WithStep(t.Context(), "")
	wantParts(t, "counted", partsOf(ctx, "mail", "charge", "mail", "mail", "charge"), "mail", "charge", "mail #2",
		"mail #3", "charge #2")
}

// TestPartsAreDistinct: no two are the same, also where a name looks like a number of another.
func TestPartsAreDistinct(t *testing.T) {
	t.Parallel()
	for _, names := range [][]string{
		{"mail", "mail", "mail #2", "mail #2", "mail", "mail #3"},
		{"mail #2", "mail", "mail", "mail #2 #2", "mail #2", "mail #2"},
	} {
		got := partsOf(part.WithStep(t.Context(), ""), names...)
		if sorted := slices.Sorted(slices.Values(got)); len(slices.Compact(sorted)) != len(got) {
			t.Errorf("of %q became %q", names, got)
		}
		again := partsOf(part.WithStep(t.Context(), ""), names...)
		wantParts(t, "the same each time", again, got...)
	}
}

// TestPartsOfSteps: each step counts for itself, and its name is part of theirs, whatever that holds.
func TestPartsOfSteps(t *testing.T) {
	t.Parallel()
	book := part.WithStep(t.Context(), "book")
	wantParts(t, "a step", partsOf(book, "mail", "mail"), `"book" mail`, `"book" mail #2`)
	wantParts(t, "another step", partsOf(part.WithStep(book, "ship"), "mail"), `"ship" mail`)
	wantParts(t, "the step again, as after a resumption", partsOf(part.WithStep(t.Context(), "book"), "mail"),
		`"book" mail`)
	wantParts(t, "a step with quotes", partsOf(part.WithStep(t.Context(), `a" b`), "mail"), `"a\" b" mail`)
}
