package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/consuming"
)

// commitTimeout is how long a commit of offsets may take. The next commit makes up for a failed one.
const commitTimeout = 5 * time.Second

// partition identifies a partition of a topic.
type partition struct {
	topic  string
	number int32
}

// runner is the state of a running consumer.
type runner struct {
	ConsumerConfig
	// waiting holds the partitions in which a record has failed. Only Run's goroutine changes it, while no partition is
	// being processed.
	waiting map[partition]*wait
	// backlog is how many records of the partitions of the current round are not processed yet, in this process or at
	// the broker.
	backlog atomic.Int64
}

// watch returns the observer, propagator and logger for the records.
func (r *runner) watch() consuming.Watch {
	return consuming.Watch{
		Observer: r.Observer, Propagator: r.Propagator, Logger: r.Logger,
		Backlog: func() int { return int(max(r.backlog.Add(-1), 0)) },
	}
}

// progress is the result of processing a partition in a round.
type progress struct {
	partition
	// done is the last settled record, and next is the first record that is not settled. Each may be nil.
	done, next *kgo.Record
	// err is why next failed. It is nil if next was not started, or was interrupted by the end of Run.
	err error
}

// round polls once and processes the fetched records. The partitions stay assigned to this client until the round ends.
func (r *runner) round(ctx context.Context) error {
	fetches, err := r.poll(ctx)
	defer r.Client.AllowRebalance()
	if err != nil {
		return err
	}
	defer func() { r.resumeDue(time.Now()) }()
	records := make(map[partition][]*kgo.Record)
	fetches.EachRecord(func(record *kgo.Record) {
		p := partition{record.Topic, record.Partition}
		records[p] = append(records[p], record)
	})
	if len(records) == 0 {
		return nil
	}
	r.backlog.Store(backlogOf(fetches))
	all := r.workOn(ctx, records)
	r.commit(ctx, all)
	return r.putBack(ctx, all)
}

// backlogOf returns how many records the fetched partitions have, from the first fetched record to the end.
func backlogOf(fetches kgo.Fetches) (n int64) {
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		if len(p.Records) > 0 {
			n += p.HighWatermark - p.Records[0].Offset
		}
	})
	return n
}

// poll waits for records, but at most until the first waiting partition is due.
func (r *runner) poll(ctx context.Context) (kgo.Fetches, error) {
	polling := ctx
	if due, waits := r.nextDue(); waits {
		var cancel context.CancelFunc
		polling, cancel = context.WithDeadline(ctx, due)
		defer cancel()
	}
	fetches := r.Client.PollRecords(polling, r.MaxRecords)
	if fetches.IsClientClosed() && ctx.Err() == nil {
		return nil, fmt.Errorf("%w: kafka: %w", onceward.ErrMisconfigured, kgo.ErrClientClosed)
	}
	fetches.EachError(func(topic string, number int32, err error) {
		if polling.Err() == nil {
			// The client retries errors that can be repaired automatically, so this error needs an operator.
			r.Logger.ErrorContext(ctx, "kafka: fetching failed", "topic", topic, "partition", number, "error", err)
		}
	})
	return fetches, nil
}

// workOn processes the partitions of a round concurrently.
func (r *runner) workOn(ctx context.Context, records map[partition][]*kgo.Record) []*progress {
	applying, cancel := consuming.Grace(ctx, r.Grace)
	defer cancel()
	end := time.Now().Add(r.MaxRound)
	slots := make(chan struct{}, r.Workers)
	all := make([]*progress, 0, len(records))
	var work sync.WaitGroup
	for p, rs := range records {
		got := &progress{partition: p}
		all = append(all, got)
		attempts := r.attempts(p, rs[0])
		slots <- struct{}{}
		work.Go(func() {
			defer func() { <-slots }()
			r.workOnPartition(ctx, applying, got, rs, attempts, end)
		})
	}
	work.Wait()
	return all
}

// workOnPartition settles records in order until one fails or the time is over. The first record has failed attempts
// times before.
func (r *runner) workOnPartition(
	ctx, applying context.Context, got *progress, records []*kgo.Record, attempts int, end time.Time,
) {
	for _, record := range records {
		if ctx.Err() != nil || !time.Now().Before(end) {
			got.next = record
			return
		}
		if err := r.settle(applying, record, attempts); err != nil {
			got.next = record
			if applying.Err() == nil {
				got.err = err
			}
			return
		}
		got.done, attempts = record, 0
	}
}

// commit commits the offsets after the settled records.
func (r *runner) commit(ctx context.Context, all []*progress) {
	var done []*kgo.Record
	for _, got := range all {
		if got.done != nil {
			done = append(done, got.done)
		}
	}
	if len(done) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	if err := r.Client.CommitRecords(ctx, done...); err != nil {
		// Nothing is lost: at worst the records are delivered again, and the inbox recognises them.
		r.Logger.WarnContext(ctx, "kafka: committing offsets failed", "error", err)
	}
}

// putBack makes the client fetch the unsettled records again; failed records only after a pause. It returns an error if
// the consumer has to stop.
func (r *runner) putBack(ctx context.Context, all []*progress) error {
	offsets := make(map[string]map[int32]kgo.EpochOffset)
	var poison []error
	for _, got := range all {
		if got.next == nil {
			delete(r.waiting, got.partition)
			continue
		}
		put(offsets, got.partition, position(got.next))
		switch {
		case errors.Is(got.err, errStop):
			poison = append(poison, got.err)
		case got.err != nil:
			pause := r.pause(got.partition, got.next, got.err)
			r.Logger.WarnContext(ctx, "kafka: a record could not be applied",
				"topic", got.topic, "partition", got.number, "offset", got.next.Offset, "pause", pause, "error", got.err)
		}
	}
	r.Client.SetOffsets(offsets)
	return errors.Join(poison...)
}

// errStop marks the error that stops the consumer.
var errStop = errors.New("kafka: the consumer stops, since there is no OnPoison to decide about the record")

// settle applies a record that has failed attempts times before, unless it was applied already. It passes poison to
// OnPoison. If it returns nil, the record is not needed again.
func (r *runner) settle(ctx context.Context, record *kgo.Record, attempts int) error {
	id, err := consuming.EventID(r.EventID, record)
	if err != nil {
		return r.poison(ctx, record, err)
	}
	_, err = r.watch().Handle(ctx, r.Inbox, r.Name, id, headersOf(record), func(ctx context.Context) error {
		return consuming.Guard(func() error { return r.Handle(ctx, record) })
	})
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return err
	case errors.Is(err, ErrPoison), consuming.Counts(err) && attempts+1 >= r.MaxAttempts:
		return r.poison(ctx, record, err)
	default:
		return err
	}
}

// poison passes a record that cannot be applied to OnPoison.
func (r *runner) poison(ctx context.Context, record *kgo.Record, cause error) error {
	if r.OnPoison == nil {
		return fmt.Errorf("%w: %w: topic %s, partition %d, offset %d: %w",
			errStop, ErrPoison, record.Topic, record.Partition, record.Offset, cause)
	}
	if err := r.OnPoison(ctx, record, cause); err != nil {
		return fmt.Errorf("kafka: OnPoison did not take the record: %w; it cannot be applied: %w", err, cause)
	}
	return nil
}
