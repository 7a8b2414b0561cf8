package main

import (
	"context"
	"net/http"

	"github.com/onceward/onceward/store/dynamodb"
)

// The figures of how many requests an operation takes.
const (
	dynamodbFirstRequests  = "dynamodb-requests-first"
	dynamodbReplayRequests = "dynamodb-requests-replay"
)

// countedKeys is how many operations are counted.
const countedKeys = 200

// measureRequests counts the requests of the store by its HTTP client, those that are repeated too.
func (e *engines) measureRequests(ctx context.Context, o *options, r *report) error {
	if !o.wants(dynamodbFirstRequests, dynamodbReplayRequests) {
		return nil
	}
	first, replay, err := e.countRequests(ctx)
	if err != nil {
		return err
	}
	r.judge(dynamodbFirstRequests, first)
	r.judge(dynamodbReplayRequests, replay)
	return nil
}

// countRequests returns how many requests a first execution and a replay take. Half of the replays are by a store that
// has not seen the key before, as after a retry that came to another node.
func (e *engines) countRequests(ctx context.Context) (first, replay float64, err error) {
	s, err := e.serveDynamoDB(ctx)
	if err != nil {
		return 0, 0, err
	}
	table, counter := s.newTable(), &requestCounter{next: http.DefaultTransport}
	var stores [2]*dynamodb.Store
	for i := range stores {
		if stores[i], err = dynamodb.Open(ctx, s.storeURL(table), dynamodb.WithTransport(counter)); err != nil {
			return 0, 0, err
		}
		defer stores[i].Close()
	}
	keys := newKeys(countedKeys)
	counter.sent.Store(0)
	for _, key := range keys {
		if err := reserveAndComplete(ctx, stores[0], key); err != nil {
			return 0, 0, err
		}
	}
	first = float64(counter.sent.Swap(0)) / countedKeys
	for i, key := range keys {
		if err := replayOnce(ctx, stores[i%2], reservation(key)); err != nil {
			return 0, 0, err
		}
	}
	return first, float64(counter.sent.Load()) / countedKeys, s.drop(table)
}
