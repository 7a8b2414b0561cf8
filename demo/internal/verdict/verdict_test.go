package verdict

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onceward/onceward/demo/internal/load"
	"github.com/onceward/onceward/examples/provider"
)

// A made-up run: one payment that was charged, one that was declined, a refund and two bookings.

func charge(reference string, amount int64) provider.Entry {
	request := provider.ChargeRequest{Reference: reference, Amount: amount}
	return provider.Entry{Type: provider.EntryCharge, Charge: &provider.Charge{ChargeRequest: request}}
}

func declined(reference string, amount int64) provider.Entry {
	e := charge(reference, amount)
	e.Type = provider.EntryDeclined
	return e
}

func refund(reference string, amount int64) provider.Entry {
	request := provider.RefundRequest{Reference: reference, Amount: amount}
	return provider.Entry{Type: provider.EntryRefund, Refund: &provider.Refund{RefundRequest: request}}
}

func note(kind load.Kind, key string, amount int64, statuses ...int) load.Note {
	n := load.Note{Order: load.Order{Kind: kind, Key: key, Amount: amount}, LastSeen: "503"}
	for _, status := range statuses {
		n.Answers = append(n.Answers, load.Answer{Status: status})
	}
	return n
}

func evidence() Evidence {
	return Evidence{
		Run: "run-a",
		Ledger: []provider.Entry{
			charge("run-earlier-1", 70), charge("run-a-1", 1000), declined("run-a-2", 666), refund("run-a-1-refund", 300),
			charge("run-a-3", 2000), declined("run-a-4", 666),
		},
		Notes: []load.Note{
			note(load.Payment, "run-a-1", 1000, 201), note(load.Payment, "run-a-2", 666, 201), note(load.Refund, "run-a-1-refund", 300, 201),
			note(load.Booking, "run-a-3", 2000, 201), note(load.Booking, "run-a-4", 666, 402),
		},
	}
}

func TestSoundRun(t *testing.T) {
	t.Parallel()
	v := Judge(evidence())
	want := []Row{
		{Kind: load.Payment, Asked: 2, Answered: 2, Made: 1, Declined: 1},
		{Kind: load.Refund, Asked: 1, Answered: 1, Made: 1},
		{Kind: load.Booking, Asked: 2, Answered: 2, Made: 1, Declined: 1},
	}
	for i := range want {
		if v.Rows[i] != want[i] {
			t.Errorf("row %+v, want %+v", v.Rows[i], want[i])
		}
	}
	if !v.Sound() || !strings.HasPrefix(v.Sentence(), "every payment was charged once") || len(v.Examples) > 0 {
		t.Errorf("the verdict is %+v: %s", v, v.Sentence())
	}
}

// TestEachFindingIsFound breaks one thing at a time.
func TestEachFindingIsFound(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, want string
		spoil      func(e *Evidence)
	}{
		{"duplicate payment", "1 payment was charged more than once, 2 too many in all, EUR 20.00 too much", func(e *Evidence) {
			e.Ledger = append(e.Ledger, charge("run-a-1", 1000), charge("run-a-1", 1000))
		}},
		{"its cost", "this would have cost customers EUR 10.00 and the shop EUR 3.00", func(e *Evidence) {
			e.Ledger = append(e.Ledger, charge("run-a-1", 1000), refund("run-a-1-refund", 300))
		}},
		{"duplicate refund", "1 refund was paid out more than once, 1 too many in all, EUR 3.00 too much", func(e *Evidence) {
			e.Ledger = append(e.Ledger, refund("run-a-1-refund", 300))
		}},
		{"duplicate booking", "1 booking was charged more than once", func(e *Evidence) {
			e.Ledger = append(e.Ledger, charge("run-a-3", 2000))
		}},
		{"acknowledged and lost", "1 payment was lost", func(e *Evidence) {
			e.Notes = append(e.Notes, note(load.Payment, "run-a-5", 1, 201))
		}},
		{"two of them", "2 payments were lost", func(e *Evidence) {
			e.Notes = append(e.Notes, note(load.Payment, "run-a-5", 1, 201), note(load.Payment, "run-a-6", 1))
		}},
		{"never answered", "1 refund was lost", func(e *Evidence) {
			e.Notes = append(e.Notes, note(load.Refund, "run-a-5", 1))
		}},
		{"never answered, but charged", "1 booking was lost", func(e *Evidence) {
			e.Notes[3].Answers = nil
		}},
		{"refused, but charged", "1 booking moved money that it should not have moved", func(e *Evidence) {
			e.Notes[3].Answers[0].Status = 402
		}},
		{"another amount", "1 payment moved money that it should not have moved", func(e *Evidence) {
			e.Notes[0].Amount = 999
		}},
		{"differing answers", "1 request got different answers to its retries", func(e *Evidence) {
			e.Notes[0] = note(load.Payment, "run-a-1", 1000, 201, 422)
		}},
		{"unasked", "1 charge or refund was made that no client asked for", func(e *Evidence) {
			e.Ledger = append(e.Ledger, charge("run-a-6", 5))
		}},
		{"unknown", "2 outcomes are still unknown", func(e *Evidence) { e.Unknown = 2 }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			e := evidence()
			test.spoil(&e)
			v := Judge(e)
			var out strings.Builder
			v.Write(&out)
			if v.Sound() || !strings.Contains(out.String(), test.want) {
				t.Errorf("the verdict does not say %q:\n%s", test.want, out.String())
			}
		})
	}
}

// TestColumnsAddUp: what was made is what was asked for, less what was declined or lost, and what is extra.
func TestColumnsAddUp(t *testing.T) {
	t.Parallel()
	e := evidence()
	e.Ledger = append(e.Ledger, charge("run-a-1", 1000), charge("run-a-1", 1000), charge("run-a-5", 50), charge("run-a-5", 50))
	e.Notes = append(e.Notes, note(load.Payment, "run-a-5", 50, 201), note(load.Payment, "run-a-6", 50, 201))
	v := Judge(e)
	want := Row{Kind: load.Payment, Asked: 4, Answered: 4, Made: 5, Declined: 1, Lost: 1, Duplicates: 2, Extra: 3, Excess: 2050}
	if r := v.Rows[0]; r != want || r.Made != r.Asked-r.Declined-r.Lost+r.Extra {
		t.Errorf("row %+v, want %+v", r, want)
	}
	var out strings.Builder
	v.Write(&out)
	for _, want := range []string{"made again   extra", "2       3\n", "beyond the first time"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table does not say %q:\n%s", want, out.String())
		}
	}
}

// TestReadLedger reads what a provider has written, with the declines that its own reader leaves out.
func TestReadLedger(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger")
	bank, err := provider.Start(t.Context(), provider.Config{LedgerPath: path})
	if err != nil {
		t.Fatal(err)
	}
	for _, amount := range []int64{5, provider.DeclinedAmount} {
		order := provider.ChargeRequest{Amount: amount, Currency: "EUR", Reference: "r"}
		_, _ = bank.Client().Charge(t.Context(), "", order) // one is declined
	}
	if err := bank.Close(); err != nil {
		t.Fatal(err)
	}
	entries, err := ReadLedger(path)
	if err != nil || len(entries) != 2 || entries[0].Charge.Amount != 5 || entries[1].Type != provider.EntryDeclined {
		t.Errorf("read %v, %v", entries, err)
	}
	if err := os.WriteFile(path, []byte("{}\n{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadLedger(path); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("a broken ledger gives %v", err)
	}
}
