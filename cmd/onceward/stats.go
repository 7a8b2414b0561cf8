package main

import (
	"context"
	"io"
	"strconv"
	"time"

	"github.com/onceward/onceward/cmd/onceward/internal/operate"
	"github.com/onceward/onceward/cmd/onceward/internal/output"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
)

// statsCommand counts records and messages.
type statsCommand struct {
	storeFlags
	watchFlags
}

// counts is the JSON of stats.
type counts struct {
	Records       map[string]int64 `json:"records"`
	DeadLetters   int64            `json:"dead_letters"`
	OldestUnknown time.Time        `json:"oldest_unknown,omitzero"`
	// LostOwners counts the records in progress whose lease has ended.
	LostOwners      int64         `json:"lost_owners"`
	OldestLostOwner time.Time     `json:"oldest_lost_owner,omitzero"`
	Outbox          *outboxCounts `json:"outbox,omitempty"`

	at time.Time
}

// outboxCounts is the JSON of open messages; nil for a store without an outbox.
type outboxCounts struct {
	Waiting     int       `json:"waiting"`
	DeadLetters int       `json:"dead_letters"`
	Oldest      time.Time `json:"oldest,omitzero"`
}

// Run prints the numbers.
func (c *statsCommand) Run(ends interrupts, out io.Writer) error {
	return c.draw(ends, &c.storeFlags, operate.Target{URL: c.Store}, out,
		func(ctx context.Context, s *operate.Session, out *output.Output) error {
			counted, err := count(ctx, s)
			if err != nil {
				return err
			}
			if out.JSON {
				return out.Object(counted)
			}
			counted.write(out)
			return nil
		})
}

// count asks the store for its numbers.
func count(ctx context.Context, s *operate.Session) (*counts, error) {
	lister, err := s.Lister()
	if err != nil {
		return nil, err
	}
	stats, err := lister.Stats(ctx)
	if err != nil {
		return nil, err
	}
	c := &counts{
		Records: make(map[string]int64), DeadLetters: stats.DeadLetters, OldestUnknown: stats.OldestUnknown,
		LostOwners: stats.LostOwners, OldestLostOwner: stats.OldestLostOwner, at: time.Now(),
	}
	for state := store.StateInProgress; state <= store.StateExpired; state++ {
		c.Records[state.String()] = stats.Records[state]
	}
	c.Outbox, err = countMessages(ctx, s)
	return c, err
}

// countMessages counts the open messages; it returns nil for a store without an outbox.
func countMessages(ctx context.Context, s *operate.Session) (*outboxCounts, error) {
	box, ok := store.As[outbox.Store](s.Store)
	if !ok {
		return nil, nil
	}
	stats, err := box.MessageStats(ctx)
	if err != nil {
		return nil, err
	}
	return &outboxCounts{Waiting: stats.Waiting, DeadLetters: stats.DeadLetters, Oldest: stats.Oldest}, nil
}

func (c *counts) write(out *output.Output) {
	table := output.NewTable("RECORDS", "COUNT")
	for state := store.StateInProgress; state <= store.StateExpired; state++ {
		table.Add(state.String(), strconv.FormatInt(c.Records[state.String()], 10))
	}
	out.Table(table)
	c.writeOpen(out)
}

// writeOpen writes the open messages.
func (c *counts) writeOpen(out *output.Output) {
	out.Line("")
	fields := []string{
		"lost owners", strconv.FormatInt(c.LostOwners, 10), "oldest lost owner", out.Time(c.OldestLostOwner),
		"oldest unknown", out.Time(c.OldestUnknown), "dead letters", strconv.FormatInt(c.DeadLetters, 10),
	}
	if c.Outbox != nil {
		fields = append(fields, "messages waiting", strconv.Itoa(c.Outbox.Waiting),
			"oldest message", out.Time(c.Outbox.Oldest), "dead messages", strconv.Itoa(c.Outbox.DeadLetters))
	}
	out.Fields(fields...)
}
