package dynamodb

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	ddb "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/onceward/onceward/internal/backoff"
)

// This file contains the requests that find several items.

// dueRange selects entries of one part of the index of due items.
type dueRange struct {
	kind  byte
	shard byte
	// from and until are the first and the last selected moment, in microseconds.
	from, until int64
	newest      bool // the latest come first
}

// always is an end of a range after all entries.
const always = int64(1) << 62

// eachDue calls found with the entries of a range, page by page, until it returns false. The index follows the table a
// moment later: an entry is a hint, and its item is read again.
func (s *Store) eachDue(ctx context.Context, r dueRange, found func(entries []item) (more bool, err error)) error {
	if r.until < r.from {
		return nil // the service accepts no such range
	}
	in := &ddb.QueryInput{
		TableName: &s.table, IndexName: aws.String(indexDue), ScanIndexForward: aws.Bool(!r.newest),
		KeyConditionExpression:   aws.String("#due = :part AND #when BETWEEN :from AND :until"),
		ExpressionAttributeNames: map[string]string{"#due": attrDueShard, "#when": attrDueAt},
		ExpressionAttributeValues: item{
			":part": binaryValue([]byte{r.kind, r.shard}),
			":from": momentValue(r.from), ":until": momentValue(r.until),
		},
	}
	return s.eachPage(ctx, in, found)
}

// keysOf returns the keys of items.
func keysOf(items []item) []item {
	keys := make([]item, len(items))
	for i, it := range items {
		keys[i] = item{attrPartition: it[attrPartition], attrSort: it[attrSort]}
	}
	return keys
}

// eachPage calls found with each page of a query until it returns false.
func (s *Store) eachPage(ctx context.Context, in *ddb.QueryInput, found func([]item) (more bool, err error)) error {
	for {
		if err := s.ready(ctx); err != nil {
			return err
		}
		out, err := s.client.Query(ctx, in, s.observing)
		if err != nil {
			return unavailable(err)
		}
		if more, err := found(out.Items); err != nil || !more || len(out.LastEvaluatedKey) == 0 {
			return err
		}
		in.ExclusiveStartKey = out.LastEvaluatedKey
	}
}

const (
	// batchKeys is how many items one request reads at most.
	batchKeys = 100
	// maxUnprocessed is how often left-out items are requested again if the service leaves out all of them.
	maxUnprocessed      = 5
	minUnprocessedPause = 20 * time.Millisecond
	maxUnprocessedPause = time.Second
)

// readAll reads the items of index entries with strong consistency. Items that are gone are left out; the order is not
// the order of the entries.
func (s *Store) readAll(ctx context.Context, entries []item, attributes ...string) (found []item, err error) {
	for chunk := range slices.Chunk(entries, batchKeys) {
		left := types.KeysAndAttributes{Keys: keysOf(chunk), ConsistentRead: aws.Bool(true)}
		left.ProjectionExpression, left.ExpressionAttributeNames = projection(attributes)
		for failures := 0; len(left.Keys) > 0; {
			if err := s.ready(ctx); err != nil {
				return nil, err
			}
			out, err := s.client.BatchGetItem(ctx, &ddb.BatchGetItemInput{
				RequestItems: map[string]types.KeysAndAttributes{s.table: left},
			}, s.observing)
			if err != nil {
				return nil, unavailable(err)
			}
			found = append(found, out.Responses[s.table]...)
			left.Keys = out.UnprocessedKeys[s.table].Keys
			if len(out.Responses[s.table]) > 0 {
				failures = 0
			} else if failures++; failures > maxUnprocessed && len(left.Keys) > 0 {
				return nil, unavailable(errUnprocessed)
			}
			if len(left.Keys) > 0 {
				backoff.Sleep(ctx, backoff.Jittered(minUnprocessedPause, maxUnprocessedPause, failures))
			}
		}
	}
	return found, nil
}

// workers is how many records are processed at once.
const workers = 16

// each calls do with the numbers below n, some of them at the same time.
func each(n int, do func(i int)) {
	work := make(chan int)
	var running sync.WaitGroup
	for range min(workers, n) {
		running.Go(func() {
			for i := range work {
				do(i)
			}
		})
	}
	for i := range n {
		work <- i
	}
	close(work)
	running.Wait()
}
