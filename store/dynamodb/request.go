package dynamodb

import (
	"context"
	"errors"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	ddb "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/store"
)

// This file contains the requests of the store. Each uses the retryer of the client, so it may reach the service more
// than once: a repeated write is recognised by its name.

// observing makes a request pass the Date header of its answer to the clock, also if the answer is an error.
func (s *Store) observing(o *ddb.Options) {
	o.APIOptions = append(o.APIOptions, func(stack *middleware.Stack) error {
		return stack.Deserialize.Add(middleware.DeserializeMiddlewareFunc("OncewardClock", s.readDate), middleware.After)
	})
}

func (s *Store) readDate(ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler) (
	middleware.DeserializeOutput, middleware.Metadata, error,
) {
	sent := time.Now()
	out, metadata, err := next.HandleDeserialize(ctx, in)
	if answer, ok := out.RawResponse.(*smithyhttp.Response); ok && answer != nil && answer.Response != nil {
		s.clock.observe(sent, time.Now(), answer.Header.Get("Date"))
	}
	return out, metadata, err
}

// ready refuses a request of a caller that has left, and every request after the store was closed.
func (s *Store) ready(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return unavailable(err)
	}
	if s.closed.Load() {
		return unavailable(errClosed)
	}
	return nil
}

// writable is ready for a write: a read-only store refuses it.
func (s *Store) writable(ctx context.Context) error {
	if s.readOnly {
		return store.ErrReadOnly
	}
	return s.ready(ctx)
}

const (
	// maxConflicts is how often a request that conflicts with a transaction at the same item is sent.
	maxConflicts                   = 8
	minConflictPause               = 5 * time.Millisecond
	maxConflictPause time.Duration = 200 * time.Millisecond
)

// unconflicted repeats a request while it conflicts with a transaction at the same item.
func unconflicted(ctx context.Context, request func() error) error {
	for conflicts := 1; ; conflicts++ {
		err := request()
		if !conflicted(err) || conflicts == maxConflicts ||
			!backoff.Sleep(ctx, backoff.Jittered(minConflictPause, maxConflictPause, conflicts)) {
			return err
		}
	}
}

// get reads an item with strong consistency.
func (s *Store) get(ctx context.Context, key item, attributes ...string) (item, error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	in := &ddb.GetItemInput{TableName: &s.table, Key: key, ConsistentRead: aws.Bool(true)}
	in.ProjectionExpression, in.ExpressionAttributeNames = projection(attributes)
	out, err := s.client.GetItem(ctx, in, s.observing)
	if err != nil {
		return nil, unavailable(err)
	}
	return out.Item, nil
}

// projection names attributes in a request. Some of the names are reserved words.
func projection(attributes []string) (expression *string, names map[string]string) {
	if len(attributes) == 0 {
		return nil, nil
	}
	names = make(map[string]string, len(attributes))
	text := ""
	for i, name := range attributes {
		if i > 0 {
			text += ", "
		}
		text += "#" + name
		names["#"+name] = name
	}
	return &text, names
}

// These are the conditions of writes.
const (
	ifAbsent = "attribute_not_exists(" + attrPartition + ")"
	ifStill  = "begins_with(" + attrRecord + ", :write)"
)

// condition returns the condition that an item is as it was read: absent, or stored by the write of that name.
func condition(over string) (expression string, values item) {
	if over == "" {
		return ifAbsent, nil
	}
	return ifStill, item{":write": binaryValue([]byte(over))}
}

// putOver stores an item if the current item is still the item that the write of that name has stored. Otherwise it
// returns the current item, which is not nil.
func (s *Store) putOver(ctx context.Context, it item, over string) (instead item, err error) {
	if err := s.writable(ctx); err != nil {
		return nil, err
	}
	expression, values := condition(over)
	err = unconflicted(ctx, func() error {
		_, err := s.client.PutItem(ctx, &ddb.PutItemInput{
			TableName: &s.table, Item: it,
			ConditionExpression: &expression, ExpressionAttributeValues: values,
			ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
		}, s.observing)
		return err
	})
	return refusal(err)
}

// deleteOver removes an item if it is still the item that the write of that name has stored. Otherwise it returns the
// current item.
func (s *Store) deleteOver(ctx context.Context, key item, over string) (instead item, err error) {
	if err := s.writable(ctx); err != nil {
		return nil, err
	}
	expression, values := condition(over)
	err = unconflicted(ctx, func() error {
		_, err := s.client.DeleteItem(ctx, &ddb.DeleteItemInput{
			TableName: &s.table, Key: key,
			ConditionExpression: &expression, ExpressionAttributeValues: values,
			ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
		}, s.observing)
		return err
	})
	return refusal(err)
}

// refusal returns the current item in the error of a condition that was not met.
func refusal(err error) (instead item, _ error) {
	if err == nil {
		return nil, nil
	}
	var failed *types.ConditionalCheckFailedException
	if !errors.As(err, &failed) {
		return nil, unavailable(err)
	}
	if failed.Item == nil {
		return item{}, nil
	}
	return failed.Item, nil
}
