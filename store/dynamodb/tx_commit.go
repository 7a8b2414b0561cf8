package dynamodb

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	ddb "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"
	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/store"
)

const (
	// maxTransacts is how often a transaction is sent that conflicts with another one, is throttled, or gets no answer.
	maxTransacts     = 8
	minTransactPause = 10 * time.Millisecond
	maxTransactPause = time.Second
)

// These are the reasons for which the service cancels a transaction.
const (
	reasonCondition = "ConditionalCheckFailed"
	reasonNone      = "None"
)

// passing are the reasons that may be gone in a moment.
var passing = map[string]bool{
	reasonNone: true, "TransactionConflict": true, "ProvisionedThroughputExceeded": true, "ThrottlingError": true,
}

// commit stores the finished record over the claim, together with the collected items.
func (t *transaction) commit(ctx context.Context, next *value, items []types.TransactWriteItem) (
	v store.Verdict, again bool, err error,
) {
	s, done := t.store, t.granted
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	instead, err := s.commit(ctx, &t.at, next, t.claimed.write, items)
	if err != nil {
		// Whether the record was committed is not guessed: if the claim can be given back, the record was not committed
		// and never will be. This also holds for refused work: an earlier try of the same request may still be on its
		// way.
		var unknown error
		if instead, unknown = t.giveBack(ctx); unknown != nil && !errors.Is(err, ErrTooLarge) {
			return v, false, fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, errors.Join(err, unknown))
		}
	}
	switch {
	case instead != nil && next.landed(instead):
		done.Record = next.Record
	case instead != nil && instead.commit != t.claimed.commit && instead.State != store.StateCompleted:
		// An earlier try of the request may have landed, and a later write, such as an operator's removal, may have
		// replaced it.
		return v, false, errors.Join(fmt.Errorf("%w: another write came over the record", store.ErrOutcomeUnknown), err)
	case errors.Is(err, store.ErrWorkRefused):
		return v, false, err
	case instead != nil && (err == nil || instead.State == store.StateCompleted):
		return v, true, nil
	case err != nil:
		return v, false, unavailable(err)
	}
	done.Record = next.Record
	s.changed(t.at.id, t.claimed, next)
	return done, false, nil
}

// landed reports whether the stored value comes from a commit, perhaps through later writes.
func (v *value) landed(stored *value) bool {
	return stored.write == v.write || stored.commit == v.write
}

// commit stores a value over the value that a write has left, together with other items. If that value has changed, it
// returns the current one: then nothing was stored, unless by an earlier try (see landed). After an error the result is
// unknown: even after an error that wraps [store.ErrWorkRefused] an earlier try may land, until another write replaces
// the value before it.
func (s *Store) commit(ctx context.Context, at *place, next *value, over string, items []types.TransactWriteItem) (
	instead *value, err error,
) {
	next.write = newWrite(next.State)
	next.commit = next.write
	it := s.encode(at, next, s.clock.now())
	if size := sizeOf(it); size > maxItem {
		return nil, fmt.Errorf("%w: %w, and not %d bytes", store.ErrWorkRefused, ErrTooLarge, size)
	}
	var found item
	if len(items) == 0 {
		found, err = s.putOver(ctx, it, over)
	} else {
		found, err = s.putTogether(ctx, it, over, items, at.token(next))
	}
	if err != nil || found == nil {
		return nil, err
	}
	instead, err = decode(at, found)
	if err == nil && instead.write == next.write {
		return nil, nil
	}
	return instead, err
}

// token returns the name of a commit for the service: while the service knows the name, it answers a repeated request
// as it answered the first.
func (p *place) token(next *value) string {
	name := strconv.AppendInt(p.hash[:], next.Attempt, 10)
	return hex.EncodeToString(hashOf(append(name, next.write...)))
}

// putTogether is putOver for an item that is stored together with others.
func (s *Store) putTogether(ctx context.Context, it item, over string, items []types.TransactWriteItem, token string) (
	instead item, err error,
) {
	if err := s.writable(ctx); err != nil {
		return nil, err
	}
	expression, values := condition(over)
	all := append([]types.TransactWriteItem{{Put: &types.Put{
		TableName: &s.table, Item: it,
		ConditionExpression: &expression, ExpressionAttributeValues: values,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}}}, items...)
	err = s.transactRetrying(ctx, &ddb.TransactWriteItemsInput{TransactItems: all, ClientRequestToken: aws.String(token)})
	var cancelled *types.TransactionCanceledException
	switch {
	case err == nil:
		return nil, nil
	case errors.As(err, &cancelled):
		if instead, refused := refusedBy(cancelled, 0); refused {
			return instead, nil
		}
		return nil, refusedWork(cancelled, items)
	case codeOf(err) == "ValidationException":
		return nil, fmt.Errorf("%w: %w", store.ErrWorkRefused, err)
	default:
		return nil, unavailable(err)
	}
}

// refusedBy returns the stored item for an item of a transaction whose condition was not met.
func refusedBy(cancelled *types.TransactionCanceledException, i int) (instead item, refused bool) {
	if i >= len(cancelled.CancellationReasons) || aws.ToString(cancelled.CancellationReasons[i].Code) != reasonCondition {
		return nil, false
	}
	if instead = cancelled.CancellationReasons[i].Item; instead == nil {
		instead = item{}
	}
	return instead, true
}

// refusedWork returns an error that names the first collected item that the service refused.
func refusedWork(cancelled *types.TransactionCanceledException, items []types.TransactWriteItem) error {
	for i, reason := range cancelled.CancellationReasons {
		code := aws.ToString(reason.Code)
		if i == 0 && !passing[code] {
			return fmt.Errorf("%w: the record: %s: %s", store.ErrWorkRefused, code, aws.ToString(reason.Message))
		}
		if i > 0 && i <= len(items) && !passing[code] {
			return fmt.Errorf("%w: item %d, %s: %s: %s", store.ErrWorkRefused, i-1, describe(&items[i-1]), code,
				aws.ToString(reason.Message))
		}
	}
	return unavailable(cancelled)
}

// describe returns a description of a collected item without its content.
func describe(one *types.TransactWriteItem) string {
	switch {
	case one.Put != nil:
		return "a Put into " + aws.ToString(one.Put.TableName)
	case one.Update != nil:
		return "an Update in " + aws.ToString(one.Update.TableName)
	case one.Delete != nil:
		return "a Delete from " + aws.ToString(one.Delete.TableName)
	default:
		return "a Check in " + aws.ToString(one.ConditionCheck.TableName)
	}
}

// transactRetrying sends a transaction, and retries it while it conflicts with others, is throttled or gets no answer.
func (s *Store) transactRetrying(ctx context.Context, in *ddb.TransactWriteItemsInput) error {
	for tries := 1; ; tries++ {
		_, err := s.client.TransactWriteItems(ctx, in, s.observing)
		if err == nil || !worthRepeating(err) || tries == maxTransacts ||
			!backoff.Sleep(ctx, backoff.Jittered(minTransactPause, maxTransactPause, tries)) {
			return err
		}
	}
}

// worthRepeating reports whether the same transaction may succeed in a moment.
func worthRepeating(err error) bool {
	var cancelled *types.TransactionCanceledException
	if errors.As(err, &cancelled) {
		for _, reason := range cancelled.CancellationReasons {
			if !passing[aws.ToString(reason.Code)] {
				return false
			}
		}
		return true
	}
	var reported smithy.APIError
	if !errors.As(err, &reported) {
		return true // there was no answer
	}
	var underWay *types.TransactionInProgressException
	return errors.As(err, &underWay) || reported.ErrorFault() == smithy.FaultServer || throttled(reported.ErrorCode())
}

// throttled reports whether a code means that there were too many requests.
func throttled(code string) bool {
	switch code {
	case "ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded":
		return true
	default:
		return false
	}
}

// CheckpointTx implements [store.TxCheckpointer]: the writes that the work collects are committed together with the
// checkpoint. The work locks nothing: if a heartbeat changes the record in the meantime, the commit is made over the
// changed record.
func (s *Store) CheckpointTx(ctx context.Context, c store.Claim, _ time.Duration,
	work func(context.Context) (store.Checkpoint, error),
) error {
	if err := s.writable(ctx); err != nil {
		return err
	}
	at := placeOf(c.ID)
	seen, err := s.look(ctx, at)
	if err != nil {
		return err
	}
	event := store.Event{Kind: store.EventCheckpoint, Attempt: c.Attempt}
	if _, err := s.decide(event, seen, s.clock.now()); err != nil {
		return err // a step whose owner may no longer write does not run
	}
	writes := &Collector{table: s.table}
	defer func() { _, _ = writes.close(ErrTransactionOver) }() // also if it panics
	if event.Checkpoint, err = work(ContextWithWrites(ctx, writes)); err != nil {
		return err
	}
	items, err := writes.close(ErrTransactionOver)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	return s.commitCheckpoint(ctx, &at, event, seen, items)
}

// commitCheckpoint commits a checkpoint over the stored value, and retries if another write has changed it in between.
func (s *Store) commitCheckpoint(ctx context.Context, at *place, event store.Event, seen *value,
	items []types.TransactWriteItem,
) error {
	for range maxTurns {
		out, err := s.decide(event, seen, s.clock.now())
		if errors.Is(err, ErrTooLarge) {
			return fmt.Errorf("%w: %w", store.ErrWorkRefused, err)
		}
		if err != nil {
			return err
		}
		next := following(seen, out.Record, out.Effect)
		instead, err := s.commit(ctx, at, next, seen.write, items)
		if err != nil && !errors.Is(err, ErrTooLarge) {
			// Whether the checkpoint was committed is not guessed: if the record can be stored as it was, the
			// checkpoint was not committed and never will be. This also holds for refused work: an earlier try of the
			// same request may still be on its way.
			var unknown error
			same := *seen
			if instead, unknown = s.replace(ctx, at, &same, seen.write, s.clock.now()); unknown != nil {
				return fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, errors.Join(err, unknown))
			}
		}
		switch {
		case instead != nil && next.landed(instead):
			return nil
		case instead != nil && err != nil && instead.commit != seen.commit:
			// The checkpoint may have landed, and a later write, such as an operator's removal, may have replaced it.
			return fmt.Errorf("%w: another write came over the record: %w", store.ErrOutcomeUnknown, err)
		case errors.Is(err, store.ErrWorkRefused):
			return err
		case err != nil:
			return unavailable(err)
		case instead == nil:
			s.changed(at.id, seen, next)
			return nil
		}
		seen = instead
	}
	return unavailable(errContention)
}
