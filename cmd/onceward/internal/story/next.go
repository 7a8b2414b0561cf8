package story

import (
	"fmt"
	"strings"
	"time"

	"github.com/onceward/onceward/cmd/onceward/internal/output"
	"github.com/onceward/onceward/store"
)

// retryGets returns the answer that a retry of the same request would get now. Leases and expiry are judged by this
// machine's clock, because a store reports its own clock only with a reservation.
func (t *Story) retryGets(now time.Time) string {
	rec := &t.record
	over := !now.Before(rec.LeaseUntil)
	expired := !rec.ExpiresAt.IsZero() && !now.Before(rec.ExpiresAt)
	switch {
	case t.unreadable:
		return "500 record-unreadable; nothing is executed"
	case rec.State == store.StateNone, rec.State == store.StateExpired:
		return "it executes: there is no record"
	case rec.State == store.StateInProgress && !over:
		return "409 with Retry-After, or what the route does about a request in flight: its owner is at work"
	case rec.State == store.StateInProgress && rec.OnLost == store.LostResume:
		return "it goes on where its lost owner was: it executes from the last recovery point"
	case rec.State == store.StateInProgress:
		return "409 outcome-unknown: its owner has lost its lease"
	case rec.State == store.StateUnknown:
		return "409 outcome-unknown, until it is settled"
	case expired:
		return "it executes: the record has expired, by the clock of this machine"
	case rec.State == store.StateRetryable:
		return "it executes, if it is the same request; another one under the key is refused as a mismatch"
	case rec.Response.NotStored:
		return "409 response-not-stored: it was done, but its answer was not stored"
	default:
		return fmt.Sprintf("the stored answer, %d, until %s", rec.Response.Status, output.Moment(rec.ExpiresAt))
	}
}

// reason is the placeholder for a reason that the person has to fill in.
const reason = " --why 'REASON'"

// next lists what a person can do, as commands to paste.
func (t *Story) next(q Question) []Command {
	rec := &t.record
	command := func(when, verb, rest string) Command {
		return Command{When: when, Command: fmt.Sprintf("onceward %s %s%s%s", verb, rec.Hash(), rest, q.Suffix)}
	}
	attempt := fmt.Sprintf(" --attempt %d", rec.Attempt)
	switch {
	case t.unreadable, rec.State == store.StateNone, rec.State == store.StateExpired:
		return nil
	case rec.State == store.StateInProgress && !q.Now.Before(rec.LeaseUntil) && rec.OnLost == store.LostResume:
		return []Command{command("no node goes on with it: take it from its owner before you decide", "unknown stop",
			attempt+reason)}
	case rec.State == store.StateInProgress && !q.Now.Before(rec.LeaseUntil):
		return []Command{{
			When:    "its owner has lost its lease, and no sweeper has made it unknown: see whether a janitor runs",
			Command: "onceward health" + q.Suffix,
		}}
	case rec.State == store.StateInProgress:
		return nil
	case rec.State == store.StateUnknown:
		return t.settling(command, attempt)
	default:
		return []Command{
			command("see the answer; that is audited", "keys show", " --reveal"+reason),
			command("keep it for longer", "keys extend", " --for 72h"+reason),
			command("the answer is wrong, and the request is to execute again", "keys bust", attempt+reason),
		}
	}
}

// settling returns the commands that settle an unknown outcome.
func (t *Story) settling(command func(when, verb, rest string) Command, attempt string) []Command {
	queue := "unknown"
	if t.record.DeadLetter {
		queue = "dead"
	}
	status, happened := 200, "it happened: store the answer that the client should have got"
	switch operation := t.record.Operation; {
	case strings.HasPrefix(operation, "POST "):
		status = 201
	case strings.HasPrefix(operation, "tools/call "):
		happened += ", as JSON that fits the output schema of the tool; for a tool without a schema any text with --text"
	}
	answer := fmt.Sprintf("%s --completed --status %d --header 'Content-Type: application/json' --body-file answer.json%s",
		attempt, status, reason)
	retry := command("the other system can answer now", queue+" retry", attempt+reason)
	if t.progress == nil {
		return []Command{
			command(happened, queue+" resolve", answer),
			command("it did not happen, and will not", queue+" resolve", attempt+" --not-executed"+reason),
			retry,
		}
	}
	step := attempt + " --step " + output.Shell(t.progress.Step)
	return []Command{
		command("the step was done: the operation goes on behind it", queue+" resolve",
			step+" --done --data-file data.json"+reason),
		command("the step was not done, and will not be: the operation goes on at it", queue+" resolve",
			step+" --not-executed"+reason),
		retry,
		command("the whole of it is over: no step runs any more", queue+" resolve", answer),
	}
}
