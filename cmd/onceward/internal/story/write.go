package story

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/onceward/onceward/cmd/onceward/internal/output"
	"github.com/onceward/onceward/cmd/onceward/internal/view"
	"github.com/onceward/onceward/store"
)

// Write writes the story for a person.
func (t *Story) Write(out *output.Output) {
	t.writeRecord(out)
	t.writeEvents(out)
	t.writeSteps(out)
	t.writeMessages(out)
	t.Revealed.write(out)
	out.Line("\nA retry now: %s.", t.Retry)
	if len(t.Next) > 0 {
		out.Line("\nWhat you can do:")
		for _, c := range t.Next {
			out.Line("  # %s\n  %s", c.When, c.Command)
		}
	}
	for _, remark := range t.Remarks {
		out.Line("\nNote: %s.", output.Text(remark))
	}
}

func (t *Story) writeRecord(out *output.Output) {
	rec := &t.record
	state := rec.State.String()
	switch {
	case t.unreadable:
		state = "cannot be read by this program"
	case t.gone():
		state = "no record: it has expired, was rejected, or was busted"
	case rec.DeadLetter:
		state += ", a dead letter: a person has to settle it"
	}
	text := output.Text
	out.Line("%s", strings.TrimSpace(text(rec.Operation)+" "+rec.Hash()))
	fields := []string{
		"scope", text(rec.Scope), "key", text(rec.Key), "state", state,
		"attempt", number(rec.Attempt), "answer", number(int64(rec.Response.Status)),
		"provider's id", text(rec.ProviderID), "trace", text(rec.TraceID), "point", text(rec.Point),
		"first error", text(rec.FirstError), "last error", text(rec.LastError), "asked last", text(rec.ReconcileError),
	}
	out.Fields(append(fields, t.whenFields(out)...)...)
}

// whenFields returns the times that matter in the record's state.
func (t *Story) whenFields(out *output.Output) []string {
	rec := &t.record
	switch {
	case rec.State == store.StateInProgress && rec.Nonce == store.Nonce{}:
		return []string{"without owner", "since " + out.Time(rec.LeaseUntil) + ", for the next attempt to go on with"}
	case rec.State == store.StateInProgress:
		return []string{
			"lease until", out.Time(rec.LeaseUntil) + "; its last heartbeat was one lease before, 30 s by default",
		}
	case rec.State == store.StateUnknown && rec.DeadLetter:
		return []string{"asked", fmt.Sprintf("%d times, and not again by itself", rec.ReconcileCount)}
	case rec.State == store.StateUnknown:
		return []string{"asked", fmt.Sprintf("%d times, next %s", rec.ReconcileCount, out.Time(rec.ReconcileAt))}
	case rec.State.Settled():
		return []string{"expires", out.Time(rec.ExpiresAt)}
	default:
		return nil
	}
}

// number returns a number as text, and nothing for zero.
func number(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

// writeEvents writes each event in full, without columns, which a terminal has no room for.
func (t *Story) writeEvents(out *output.Output) {
	if len(t.Events) > 0 {
		out.Line("\nWhat happened:")
	}
	for _, e := range t.Events {
		line := output.Instant(e.At) + "  " + output.Text(e.What)
		if e.By != "" {
			line += ", by " + output.Text(e.By)
		}
		if e.Detail != "" {
			line += ": " + output.Text(e.Detail)
		}
		out.Line("  %s", line)
	}
}

func (t *Story) writeSteps(out *output.Output) {
	if len(t.Steps) > 0 {
		out.Line("")
		table := output.NewTable("STEP", "STATE", "PROVIDER'S ID", "DOWNSTREAM KEY")
		for _, step := range t.Steps {
			table.Add(output.Text(step.Name), step.State, output.Text(step.ProviderID), t.DownstreamKeys[step.Name])
		}
		out.Table(table)
		p := t.progress
		if p.Failure != "" {
			out.Line("Step %s failed last with: %s", output.Text(p.Step), output.Text(p.Failure))
		}
		if p.LookUpFailure != "" {
			out.Line("The question about its call failed last, which says nothing of the call: %s",
				output.Text(p.LookUpFailure))
		}
		out.Line("Attempts at the step that failed: %d; that were lost there: %d; version of the definition: %d.",
			p.Attempts, p.Lost, p.Version)
		return
	}
	if len(t.DownstreamKeys) > 0 {
		out.Line("")
		table := output.NewTable("STEP", "DOWNSTREAM KEY")
		for _, step := range slices.Sorted(maps.Keys(t.DownstreamKeys)) {
			table.Add(output.Text(step), t.DownstreamKeys[step])
		}
		out.Table(table)
	}
}

func (t *Story) writeMessages(out *output.Output) {
	if len(t.Messages) == 0 {
		return
	}
	out.Line("")
	WriteMessages(out, t.Messages)
}

// WriteMessages writes messages as a table.
func WriteMessages(out *output.Output, messages []view.Message) {
	table := output.NewTable("MESSAGE", "TOPIC", "TYPE", "STATE", "TRIES", "AGE", "DUE", "PROVIDER'S ID", "LAST ERROR").Whole(1)
	for i := range messages {
		m := &messages[i]
		table.Add(m.MessageID, output.Text(m.Topic), output.Text(m.Type), m.State, strconv.Itoa(m.Attempts),
			out.Old(m.CreatedAt), out.Age(m.Due), output.Text(m.ProviderID), output.Text(m.LastError))
	}
	out.Table(table)
}

// write writes the revealed content, if there is any.
func (r *Revealed) write(out *output.Output) {
	if r == nil {
		return
	}
	if r.Status != 0 {
		out.Line("\nAnswer: %d", r.Status)
		for _, field := range r.Header {
			out.Line("  %s", output.Text(field))
		}
	}
	WriteContent(out, "Body", r.Body)
	WriteContent(out, "Carried data", r.Carried)
	for i := range r.Late {
		out.Line("\nA late answer:")
		r.Late[i].write(out)
	}
}

// WriteContent writes revealed content under a title, if there is any.
func WriteContent(out *output.Output, title string, c *view.Content) {
	switch {
	case c == nil:
	case c.Sealed:
		out.Line("\n%s: sealed. Give the key ring of the service with --seal-key-file.", title)
	case c.Base64 != "":
		out.Line("\n%s, in base64:\n%s", title, c.Base64)
	default:
		out.Line("\n%s:\n%s", title, output.Lines(c.Text))
	}
}
