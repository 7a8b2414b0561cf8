package kafka

import (
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/internal/consuming"
)

// wait is a partition's wait for another try of a record.
type wait struct {
	at kgo.EpochOffset
	// attempts is how often the record has failed for a reason of its own, and pauses how often for any.
	attempts, pauses int
	until            time.Time
	paused           bool
}

// position is where a partition stands when the record is the next one.
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

// pause makes a partition wait after a record has failed, and returns for how long. Nothing is fetched from it
// meanwhile, also if it goes to another member of the group and comes back.
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

// nextDue returns when the first of the partitions that wait is due, if any does.
func (r *runner) nextDue() (due time.Time, waits bool) {
	for _, w := range r.waiting {
		if w.paused && (!waits || w.until.Before(due)) {
			due, waits = w.until, true
		}
	}
	return due, waits
}

// resumeDue lets the partitions that have waited long enough be fetched from. It is called while the group cannot
// rebalance.
func (r *runner) resumeDue(now time.Time) {
	due := r.resume(func(w *wait) bool { return !now.Before(w.until) })
	if len(due) == 0 {
		return
	}
	// A fetch without the partition may be under way, and lasts for the client's FetchMaxWait if nothing arrives. To
	// set the position, with the epoch left out so that it is another one, makes the client begin again. That is done
	// only if the partition is still where it was put back to: one that has been away meanwhile is where the group has
	// committed.
	current := r.Client.CommittedOffsets()
	offsets := make(map[string]map[int32]kgo.EpochOffset)
	for _, p := range due {
		if at := r.waiting[p].at; current[p.topic][p.number] == at {
			put(offsets, p, kgo.EpochOffset{Epoch: -1, Offset: at.Offset})
		}
	}
	r.Client.SetOffsets(offsets)
}

// put notes the position of a partition in the form that the client wants.
func put(offsets map[string]map[int32]kgo.EpochOffset, p partition, at kgo.EpochOffset) {
	if offsets[p.topic] == nil {
		offsets[p.topic] = make(map[int32]kgo.EpochOffset)
	}
	offsets[p.topic][p.number] = at
}

// resume ends the wait of the partitions that are chosen, and returns them.
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
