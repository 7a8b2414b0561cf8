package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward/internal/canon"
)

// The contenders of the fingerprint.
const (
	canonical = "canonical form and SHA-256"
	validated = "json.Valid and SHA-256"
)

// Turns are short and many, because both sides take microseconds and other processes take milliseconds.
const (
	fingerprintTurn = 200
	// fingerprintTurns is for each round of the command line.
	fingerprintTurns = 50
)

// measureFingerprint compares the fingerprint of a 1 KiB body with the least that anyone has to do who checks and
// hashes it.
func measureFingerprint(ctx context.Context, o *options, r *report) error {
	const name = "fingerprint-vs-valid-sha256"
	if !o.wants(name) {
		return nil
	}
	body := []byte(order)
	form, err := canon.Append(nil, body, nil)
	if err != nil {
		return err
	}
	var (
		sum   [sha256.Size]byte
		valid bool
	)
	fingerprint := func() {
		form, err = canon.Append(form[:0], body, nil)
		sum = sha256.Sum256(form)
	}
	plain := func() {
		valid = json.Valid(body)
		sum = sha256.Sum256(body)
	}
	nanos := make(series)
	for range o.rounds * fingerprintTurns {
		nanos.add(canonical, nanosEach(fingerprint))
		nanos.add(validated, nanosEach(plain))
		if err := errors.Join(ctx.Err(), err); err != nil {
			return err
		}
	}
	if !valid || sum == [sha256.Size]byte{} {
		return errors.New("the fingerprint was not computed")
	}
	t := &table{
		title: fmt.Sprintf("Fingerprint of %d bytes of JSON", len(body)),
		head:  []string{"way", "ns"},
	}
	for _, c := range []string{canonical, validated} {
		t.add(c, grouped(nanos.median(c)))
	}
	r.keep(t)
	r.judge(name, nanos.ratio(canonical, validated))
	return nil
}

func nanosEach(f func()) float64 {
	started := time.Now()
	for range fingerprintTurn {
		f()
	}
	return float64(time.Since(started).Nanoseconds()) / fingerprintTurn
}
