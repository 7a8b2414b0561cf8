package kafka

import (
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/internal/consuming"
)

// wait is the wait of a partition before it retries a record.
type wait struct {
	at kgo.EpochOffset
	// attempts is how often the record has failed for a reason of its own, and pauses is how often it has failed for
	// any reason.
	attempts, pauses int
	until            time.Time
	paused           bool
}

// position returns the position of a partition whose next record is the given one.
func position(record *kgo.Record) kgo.EpochOffset {
	return kgo.EpochOffset{Epoch: record.LeaderEpoch, Offset: record.Offset}
}

// attempts returns how often a record has failed before.
func (r *runner) attempts(p partition, record *kgo.Record) int {
	if w := r.waiting[p]; w != nil && w.at == position(record) {
		return w.attempts
	}
	return 0
}

// pause makes a partition wait after a record has failed, and returns the length of the wait. Nothing is fetched from
// the partition during the wait, even if it moves to another member of the group and back.
func (r *runner) pause(p partition, record *kgo.Record, err error) time.Duration {
	w := r.waiting[p]
	if w == nil || w.at != position(record) {
		w = &wait{at: position(record)}
		r.waiting[p] = w
	}
	if consuming.Counts(err) {
		w.attempts++
	}
	w.pauses++
	pause := backoff.Jittered(r.MinBackoff, r.MaxBackoff, w.pauses)
	w.until = time.Now().Add(pause)
	w.paused = true
	r.Client.PauseFetchPartitions(map[string][]int32{p.topic: {p.number}})
	return pause
}

// nextDue returns when the first waiting partition is due, if any partition waits.
func (r *runner) nextDue() (due time.Time, waits bool) {
	for _, w := range r.waiting {
		if w.paused && (!waits || w.until.Before(due)) {
			due, waits = w.until, true
		}
	}
	return due, waits
}

// resumeDue resumes fetching from the partitions whose wait is over. It is called while the group cannot rebalance.
func (r *runner) resumeDue(now time.Time) {
	due := r.resume(func(w *wait) bool { return !now.Before(w.until) })
	if len(due) == 0 {
		return
	}
	// A fetch without the partition may be running, and takes the client's FetchMaxWait if no records arrive. Setting
	// the position makes the client start a new fetch; the epoch is left out so that the position differs from the
	// current one. The position is set only if the partition is still where it was put back: a partition that moved
	// away in the meantime is at the position that the group has committed.
	current := r.Client.CommittedOffsets()
	offsets := make(map[string]map[int32]kgo.EpochOffset)
	for _, p := range due {
		if at := r.waiting[p].at; current[p.topic][p.number] == at {
			put(offsets, p, kgo.EpochOffset{Epoch: -1, Offset: at.Offset})
		}
	}
	r.Client.SetOffsets(offsets)
}

// put sets the position of a partition in the map that the client expects.
func put(offsets map[string]map[int32]kgo.EpochOffset, p partition, at kgo.EpochOffset) {
	if offsets[p.topic] == nil {
		offsets[p.topic] = make(map[int32]kgo.EpochOffset)
	}
	offsets[p.topic][p.number] = at
}

// resume ends the wait of the chosen partitions and returns them.
func (r *runner) resume(chosen func(w *wait) bool) (due []partition) {
	numbers := make(map[string][]int32)
	for p, w := range r.waiting {
		if w.paused && chosen(w) {
			w.paused = false
			due = append(due, p)
			numbers[p.topic] = append(numbers[p.topic], p.number)
		}
	}
	if len(due) > 0 {
		r.Client.ResumeFetchPartitions(numbers)
	}
	return due
}
