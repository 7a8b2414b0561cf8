package provider

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
)

// EntryType is the type of a line of the ledger.
type EntryType string

const (
	// EntryCharge is a charge that moved money.
	EntryCharge EntryType = "charge"
	// EntryDeclined is a charge that was declined. It is stored so
	// that its key and its ID survive a restart, but it is no effect.
	EntryDeclined EntryType = "declined"
	// EntryRefund is a refund.
	EntryRefund EntryType = "refund"
)

// Entry is one line of the ledger: either a charge or a refund.
type Entry struct {
	// Type determines which of the other fields is set.
	Type EntryType `json:"type"`
	// Charge is set for EntryCharge and EntryDeclined.
	Charge *Charge `json:"charge,omitempty"`
	// Refund is set for EntryRefund.
	Refund *Refund `json:"refund,omitempty"`
}

// Ledger is the effects of a provider in the order in which they happened: only what moved money.
type Ledger []Entry

// Charges returns the charges with the given reference that moved money. More than one is a double charge, if the
// caller gives each payment a reference of its own.
func (l Ledger) Charges(reference string) []Charge {
	var found []Charge
	for _, e := range l {
		if e.Type == EntryCharge && e.Charge.Reference == reference {
			found = append(found, *e.Charge)
		}
	}
	return found
}

// Refunds returns the refunds of the charge with the given ID.
func (l Ledger) Refunds(charge string) []Refund {
	var found []Refund
	for _, e := range l {
		if e.Type == EntryRefund && e.Refund.Charge == charge {
			found = append(found, *e.Refund)
		}
	}
	return found
}

// RefundsByReference returns the refunds with the given reference of their own. More than one is a double refund, if
// the caller gives each refund a reference of its own.
func (l Ledger) RefundsByReference(reference string) []Refund {
	var found []Refund
	for _, e := range l {
		if e.Type == EntryRefund && e.Refund.Reference == reference {
			found = append(found, *e.Refund)
		}
	}
	return found
}

// ReadLedger reads the effects from the ledger file of a provider, which may be running or
// dead, in this process or another. An incomplete last line is left out: it never happened.
func ReadLedger(path string) (Ledger, error) {
	entries, err := ReadEntries(path, 0)
	return effects(entries), err
}

// ReadEntries is like [ReadLedger], but includes declined charges, which are no effects. It
// starts at an offset in bytes, which must be at the end of a line: an earlier size of the file.
func ReadEntries(path string, behind int64) ([]Entry, error) {
	data, err := readBehind(path, behind)
	if err != nil {
		return nil, fmt.Errorf("read the ledger: %w", err)
	}
	entries, _, err := parseLedger(data)
	return entries, err
}

// readBehind reads a file from an offset.
func readBehind(path string, behind int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if _, err := file.Seek(behind, io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(file)
}

func effects(entries []Entry) Ledger {
	var l Ledger
	for _, e := range entries {
		if e.Type != EntryDeclined {
			l = append(l, e)
		}
	}
	return l
}

// parseLedger returns the entries, and the length of the complete lines in data.
func parseLedger(data []byte) (entries []Entry, whole int64, err error) {
	for number := 1; ; number++ {
		line, rest, found := bytes.Cut(data, []byte("\n"))
		if !found {
			return entries, whole, nil
		}
		var e Entry
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, whole, fmt.Errorf("line %d of the ledger: %w", number, err)
		}
		if !e.sound() {
			return nil, whole, fmt.Errorf("line %d of the ledger: an entry of type %q without its content", number, e.Type)
		}
		entries = append(entries, e)
		whole += int64(len(line)) + 1
		data = rest
	}
}

func (e Entry) sound() bool {
	switch e.Type {
	case EntryCharge, EntryDeclined:
		return e.Charge != nil
	case EntryRefund:
		return e.Refund != nil
	}
	return false
}

// ledgerFile is the durable part of the book. Without a path it stores nothing.
type ledgerFile struct {
	file *os.File
	// broken is the first failure. The content of the file is not known after it, so nothing more is written.
	broken error
}

// openLedger returns the file and its entries. It cuts off an
// incomplete last line, so that the next line does not continue it.
func openLedger(path string) (*ledgerFile, []Entry, error) {
	if path == "" {
		return &ledgerFile{}, nil, nil
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("open the ledger: %w", err)
	}
	entries, err := recoverLedger(file)
	if err != nil {
		file.Close()
		return nil, nil, err
	}
	return &ledgerFile{file: file}, entries, nil
}

func recoverLedger(file *os.File) ([]Entry, error) {
	data, err := io.ReadAll(file)
	if err != nil {
		return nil, fmt.Errorf("read the ledger: %w", err)
	}
	entries, whole, err := parseLedger(data)
	if err != nil {
		return nil, err
	}
	if whole < int64(len(data)) {
		if err := file.Truncate(whole); err != nil {
			return nil, fmt.Errorf("cut the torn line off the ledger: %w", err)
		}
	}
	return entries, nil
}

// append makes the entry durable. The line is written at once, so that a reader sees at most the last line incomplete.
func (l *ledgerFile) append(e Entry) error {
	if l.broken != nil || l.file == nil {
		return l.broken
	}
	line, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode an entry of the ledger: %w", err)
	}
	if _, err = l.file.Write(append(line, '\n')); err == nil {
		err = l.file.Sync()
	}
	if err != nil {
		l.broken = fmt.Errorf("the ledger is broken: %w", err)
	}
	return l.broken
}

func (l *ledgerFile) close() error {
	if l.file == nil {
		return nil
	}
	return l.file.Close()
}
