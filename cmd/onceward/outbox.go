package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/onceward/onceward/cmd/onceward/internal/operate"
	"github.com/onceward/onceward/cmd/onceward/internal/output"
	"github.com/onceward/onceward/cmd/onceward/internal/story"
	"github.com/onceward/onceward/cmd/onceward/internal/view"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
)

// outboxCommand has the commands for messages.
type outboxCommand struct {
	List    outboxList    `cmd:"" help:"List messages, the oldest first."`
	Show    outboxShow    `cmd:"" help:"Show one message."`
	Retry   outboxRetry   `cmd:"" help:"Deliver a dead letter again, with the full number of attempts."`
	Discard outboxDiscard `cmd:"" help:"Discard a dead letter: an aggregate that it holds up continues without it."`
}

// outboxList lists messages.
type outboxList struct {
	storeFlags
	watchFlags
	Limit  int      `default:"50" help:"The most to list."`
	After  string   `placeholder:"ID" help:"Continue after this message."`
	States []string `name:"state" enum:"ready,leased,behind,holding,done,dead,captured" placeholder:"STATE" help:"Only this state: ready, leased, behind, holding, done, dead or captured. Repeatable. Dead letters are dead and holding."`
	Topic  string   `help:"Only this topic."`
	Open   bool     `help:"Omit discarded dead letters, as counts do."`
}

// Run lists messages.
func (c *outboxList) Run(ends interrupts, out io.Writer) error {
	if c.Limit < 1 {
		return operate.Usage("--limit must be at least 1")
	}
	filter := outbox.Filter{Topic: c.Topic, After: c.After, Undropped: c.Open, Limit: c.Limit + 1}
	for state := outbox.StateReady; state <= outbox.StateCaptured; state++ {
		for _, name := range c.States {
			if name == state.String() {
				filter.States = append(filter.States, state)
			}
		}
	}
	look := func(ctx context.Context, s *operate.Session, out *output.Output) error {
		box, err := s.Outbox()
		if err != nil {
			return err
		}
		found, err := box.Messages(ctx, filter)
		if err != nil {
			return err
		}
		more := len(found) > c.Limit
		return writeMessages(out, found[:min(len(found), c.Limit)], more)
	}
	return c.draw(ends, &c.storeFlags, operate.Target{URL: c.Store}, out, look)
}

// writeMessages writes a page of messages.
func writeMessages(out *output.Output, found []outbox.Entry, more bool) error {
	views := make([]view.Message, len(found))
	for i := range found {
		views[i] = view.OfMessage(&found[i])
	}
	if out.JSON {
		for i := range views {
			if err := out.Object(views[i]); err != nil {
				return err
			}
		}
		return nil
	}
	if len(found) == 0 {
		out.Line("None.")
		return nil
	}
	story.WriteMessages(out, views)
	if more {
		out.Line("There are more: --after %s", found[len(found)-1].ID)
	}
	return nil
}

// messageFlags name a message.
type messageFlags struct {
	ID string `arg:"" help:"The message's id."`
}

// find reads the message.
func (f *messageFlags) find(ctx context.Context, s *operate.Session) (*outbox.Entry, error) {
	box, err := s.Outbox()
	if err != nil {
		return nil, err
	}
	found, err := box.Messages(ctx, outbox.Filter{ID: f.ID, Limit: 1})
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("there is no message '%s': it was delivered and purged, or is in another store: %w",
			output.Text(f.ID), store.ErrNotFound)
	}
	return &found[0], nil
}

// outboxShow shows one message.
type outboxShow struct {
	messageFlags
	storeFlags
	secretFlags
	byFlags
	Reveal bool `help:"Show payload, headers and kept answer. Audited: --why is required."`
}

// shownMessage is the JSON of a message that is shown.
type shownMessage struct {
	view.Message
	Headers map[string]string `json:"headers,omitempty"`
	Payload *view.Content     `json:"payload,omitempty"`
	Answer  *view.Content     `json:"answer,omitempty"`
}

// Run shows the message.
func (c *outboxShow) Run(ends interrupts, out io.Writer) error {
	target, err := c.target(c.Store)
	if err != nil {
		return err
	}
	var by reconcile.By
	if c.Reveal {
		if by, err = c.by(); err != nil {
			return err
		}
		target.Writes = true
	}
	return c.with(ends, target, func(ctx context.Context, s *operate.Session) error {
		entry, err := c.find(ctx, s)
		if err != nil {
			return err
		}
		shown := shownMessage{Message: view.OfMessage(entry)}
		if c.Reveal {
			if err := revealMessage(ctx, s, by, entry, &shown); err != nil {
				return err
			}
		}
		return shown.write(output.New(out, c.JSON))
	})
}

// revealMessage adds the content of a message and records that in the audit: about the operation that added the message
// or, if there is none, about a key that is the message's ID, as for the outbox's own acts.
func revealMessage(
	ctx context.Context, s *operate.Session, by reconcile.By, e *outbox.Entry, shown *shownMessage,
) error {
	auditor, err := operate.Need[store.Auditor](s, "keep an audit, without which nothing is revealed")
	if err != nil {
		return err
	}
	claim := store.Claim{ID: e.Origin, Attempt: e.OriginAttempt}
	if claim.ID == (store.ID{}) {
		claim.Key = e.ID
	}
	return by.Act(ctx, auditor, claim, "outbox reveal "+e.ID, func() error {
		shown.Headers, shown.Payload, shown.Answer = e.Headers, view.OfContent(e.Payload), view.OfContent(e.Answer)
		return nil
	})
}

func (m *shownMessage) write(out *output.Output) error {
	if out.JSON {
		return out.Object(m)
	}
	text := output.Text
	out.Line("%s to %s", text(m.Type), text(m.Topic))
	origin := ""
	if m.Origin != nil {
		origin = fmt.Sprintf("%s (key %s of scope %s)", m.Origin.Hash, text(m.Origin.Key), text(m.Origin.Scope))
	}
	aggregate := strings.TrimSpace(text(m.AggregateType) + " " + text(m.AggregateID))
	out.Fields("id", m.MessageID, "state", m.State, "aggregate", aggregate,
		"added", out.Time(m.CreatedAt), "due, or done", out.Time(m.Due), "attempts", fmt.Sprint(m.Attempts),
		"last error", text(m.LastError), "downstream key", text(m.DownstreamKey), "provider's id", text(m.ProviderID),
		"added by", origin, "content", fmt.Sprintf("%d bytes of %s", m.PayloadBytes, text(m.ContentType)))
	for name, value := range m.Headers {
		out.Line("  header %s: %s", text(name), text(value))
	}
	story.WriteContent(out, "Payload", m.Payload)
	story.WriteContent(out, "Answer", m.Answer)
	return nil
}

// outboxActFlags are the flags of acts on messages.
type outboxActFlags struct {
	IDs   []string `arg:"" optional:"" name:"id" help:"The messages' ids."`
	All   bool     `help:"Retry: all dead letters not discarded. Discard: all that hold up an aggregate. At most --limit."`
	Topic *string  `help:"With --all, only this topic."`
	Limit int      `default:"1000" help:"With --all, the most."`
	storeFlags
	actFlags
}

// each acts on each chosen message.
func (c *outboxActFlags) each(
	ends interrupts, out io.Writer, action, effect string, states []outbox.State,
	do func(op *outbox.Operator, ctx context.Context, who, why, id string) error,
) error {
	if c.All != (len(c.IDs) == 0) {
		return operate.Usage("name messages, or give --all")
	}
	if err := checkAll(c.Limit, chosen{"--topic", c.Topic}); err != nil {
		return err
	}
	more := false
	err := c.acting(ends, &secretFlags{}, &c.actFlags, out, func(ctx context.Context, s *operate.Session) ([]act, error) {
		box, err := s.Outbox()
		if err != nil {
			return nil, err
		}
		operator, err := outbox.NewOperator(box)
		if err != nil {
			return nil, err
		}
		found, err := c.chosen(ctx, s, box, states)
		if err != nil {
			return nil, err
		}
		if more = c.All && len(found) > c.Limit; more {
			found = found[:c.Limit]
		}
		acts := make([]act, len(found))
		for i := range found {
			e := &found[i]
			if e.State != outbox.StateDead && e.State != outbox.StateHolding {
				return nil, operate.Refused("nothing was done: message %s is %s, and only dead letters can be retried or discarded",
					e.ID, e.State)
			}
			about := fmt.Sprintf("message %s, %s to %s, %s after %d attempts", e.ID, output.Text(e.Type), output.Text(e.Topic),
				e.State, e.Attempts)
			acts[i] = act{
				action: action, about: about, effects: []string{effect}, id: e.Origin, attempt: e.OriginAttempt, message: e.ID,
				do: func(ctx context.Context, by reconcile.By) error { return do(operator, ctx, by.Who, by.Why, e.ID) },
			}
		}
		return acts, nil
	})
	return leftOver(err, more)
}

// chosen returns the chosen messages, and one more if there are more than the limit.
func (c *outboxActFlags) chosen(
	ctx context.Context, s *operate.Session, box outbox.Store, states []outbox.State,
) (found []outbox.Entry, err error) {
	if c.All {
		filter := outbox.Filter{States: states, Undropped: true, Limit: c.Limit + 1}
		if c.Topic != nil {
			filter.Topic = *c.Topic
		}
		return box.Messages(ctx, filter)
	}
	for _, id := range c.IDs {
		e, err := (&messageFlags{ID: id}).find(ctx, s)
		if err != nil {
			return nil, err
		}
		found = append(found, *e)
	}
	return found, nil
}

// outboxRetry lets workers deliver dead letters once more.
type outboxRetry struct{ outboxActFlags }

// Run makes the messages due.
func (c *outboxRetry) Run(ends interrupts, out io.Writer) error {
	return c.each(ends, out, "outbox replay", "it is delivered again, under the same id and downstream key, "+
		"with all attempts before it; if its aggregate went on without it, it comes out of order",
		[]outbox.State{outbox.StateDead, outbox.StateHolding}, (*outbox.Operator).Replay)
}

// outboxDiscard discards dead letters, so that their aggregates continue.
type outboxDiscard struct{ outboxActFlags }

// Run discards the messages. --all means the dead letters that hold up an aggregate: a discarded letter stays dead, and
// would otherwise be chosen a second time in the place of another.
func (c *outboxDiscard) Run(ends interrupts, out io.Writer) error {
	return c.each(ends, out, "outbox drop", "it is not delivered, and its aggregate goes on without it; "+
		"it stays in the list of dead letters, and is not counted any more",
		[]outbox.State{outbox.StateHolding}, (*outbox.Operator).Drop)
}
