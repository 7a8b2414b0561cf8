package ledger

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// Status is the progress of a comparison.
type Status struct {
	// Until is a time of the ledgers: effects before it have been compared, except for the uncompared windows. It is
	// behind the store's clock by a window and its time to settle, or more if there are too many uncompared windows to
	// continue.
	Until time.Time
	// Uncompared are the windows that have settled and have not been compared, in the order of time. There are at most
	// 100: later windows are added when there is room.
	Uncompared []Uncompared
}

// Uncompared is a window that is due until it is compared, or given up by a person.
type Uncompared struct {
	Window Window `json:"window"`
	// Since is when it was first due, by the store's clock.
	Since time.Time `json:"since"`
	// Attempts is how often it could not be compared, and Why the last error.
	Attempts int    `json:"attempts,omitempty"`
	Why      string `json:"why,omitempty"`
	// RetryAt is when it is tried next, by the store's clock.
	RetryAt time.Time `json:"retry_at"`
	// Counts is the summary so far.
	Counts Summary `json:"counts"`
}

// These bound the journal: maxUncompared and maxMoves its lists, and maxWhy the reasons in it.
const (
	maxUncompared = 100
	maxMoves      = 20
	maxWhy        = 500
)

// journal is the stored state of a comparison. Each moment from Begin to Next lies in the inner part of exactly one
// window, which has been compared, has been given up, or is in Open. The windows after Next follow from the store's
// clock and need no list.
type journal struct {
	Begin time.Time  `json:"begin"`
	Next  time.Time  `json:"next"`
	Open  []*pending `json:"open,omitempty"`
	// Moves are the last advances of Next, in case the clock was wrong.
	Moves []move `json:"moves,omitempty"`
}

// move records that Next advanced from From when the store's clock was Clock.
type move struct {
	Clock time.Time `json:"clock"`
	From  time.Time `json:"from"`
}

// pending is an uncompared window, with the settings it was begun with.
type pending struct {
	Uncompared
	Grace time.Duration `json:"grace"`
	// After is in bytes because a key may hold what JSON cannot write.
	After []byte `json:"after,omitempty"`
}

// restart drops the progress of a window.
func (p *pending) restart() { p.After, p.Counts = nil, Summary{Run: p.Counts.Run} }

// layout names the recovery point whose data is a journal in this program's encoding.
const layout = "journal 1"

// readJournal decodes the journal in a recovery point. A journal that this program does not know is left to a newer
// node: starting again would lose the windows that are due.
func readJournal(point string, data []byte) (j journal, err error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if point != layout {
		err = fmt.Errorf("its layout is %q, and this program knows %q", point, layout)
	} else {
		err = decoder.Decode(&j)
	}
	if err != nil {
		return journal{}, fmt.Errorf("ledger: the progress of the comparison cannot be read: %w", err)
	}
	return j, nil
}

// begin returns the journal of a comparison that never ran.
func (c *Config) begin(now time.Time) journal {
	begin := c.Since
	if begin.IsZero() {
		begin = now.Add(-c.Settle).Truncate(c.Interval).Add(-c.Interval - c.Grace)
	}
	return journal{Begin: begin.UTC(), Next: begin.UTC()}
}

// nextEnd returns the end of the first window that is not in the journal yet. All ends are whole multiples of the
// interval.
func (c *Config) nextEnd(j *journal) time.Time {
	return j.Next.Add(c.Grace).Truncate(c.Interval).Add(c.Interval)
}

// advance opens the windows that have settled. Each begins the grace before Next, so that entries at the end of the
// previous window are inside it.
func (c *Config) advance(j *journal, now time.Time) {
	from := j.Next
	for len(j.Open) < maxUncompared {
		end := c.nextEnd(j)
		due := end.Add(c.Settle)
		if due.After(now) {
			break
		}
		w := Window{From: j.Next.Add(-c.Grace), To: end}
		j.Open = append(j.Open, &pending{
			Uncompared: Uncompared{Window: w, Since: due, RetryAt: due, Counts: Summary{Run: c.Name + " " + w.String()}},
			Grace:      c.Grace,
		})
		j.Next = end.Add(-c.Grace)
	}
	if j.Next.After(from) {
		j.Moves = append(j.Moves, move{Clock: now, From: from})
		j.Moves = j.Moves[max(0, len(j.Moves)-maxMoves):]
	}
}

// rewind goes back if necessary, and reports whether it did: to an earlier Since, and, if the store's clock has stepped
// back, to the position at the clock's current time. Later windows may have been compared before they had ended, and
// are compared again when their time has come.
func (c *Config) rewind(j *journal, now time.Time) bool {
	was := j.Next
	if !c.Since.IsZero() && c.Since.Before(j.Begin) {
		j.Begin, j.Next = c.Since.UTC(), c.Since.UTC()
	}
	if i := slices.IndexFunc(j.Moves, func(m move) bool { return m.Clock.After(now) }); i >= 0 {
		from := earlier(j.Moves[i].From, c.settledAt(j, now))
		j.Next, j.Moves = earlier(j.Next, from), j.Moves[:i]
		j.Open = slices.DeleteFunc(j.Open, func(p *pending) bool { return !p.Window.From.Add(p.Grace).Before(from) })
		for _, p := range j.Open {
			p.RetryAt = earlier(p.RetryAt, now.Add(c.longest()))
		}
	}
	return j.Next.Before(was)
}

// settledAt returns how far a comparison can have come at a moment of the clock: no window that had not settled then
// may count as compared, however many moves ago it was opened.
func (c *Config) settledAt(j *journal, now time.Time) time.Time {
	next := now.Add(-c.Settle).Truncate(c.Interval).Add(-c.Grace)
	if next.Before(j.Begin) {
		return j.Begin
	}
	return next.UTC()
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// due returns the window that has been due for longest, or nil.
func (j *journal) due(now time.Time) (first *pending) {
	for _, p := range j.Open {
		if !p.RetryAt.After(now) && (first == nil || p.RetryAt.Before(first.RetryAt)) {
			first = p
		}
	}
	return first
}

// wait returns the time until a window is due next.
func (c *Config) wait(j *journal, now time.Time) time.Duration {
	next := c.nextEnd(j).Add(c.Settle)
	if len(j.Open) >= maxUncompared {
		next = now.Add(c.longest())
	}
	for _, p := range j.Open {
		next = earlier(next, p.RetryAt)
	}
	return max(next.Sub(now), 0)
}
