package main

import (
	"strings"
	"testing"
)

// TestRun: each reply is lost, and each effect is there once.
func TestRun(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	said := out.String()
	if n := strings.Count(said, "the reply is lost; the call is made again"); n != 3 {
		t.Errorf("%d replies were lost, want 3:\n%s", n, said)
	}
	for _, want := range []string{
		"result (the result of the first call): Booking 1: Ada at 19:00.",
		"result (the result of the first call): Ada has paid 20.00.",
		"result: This call did nothing: its idempotency key belongs to an earlier call, of pay_deposit",
		"Bookings made: 1. Payments taken: 1.",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is not in\n%s", want, said)
		}
	}
}
