package storeurl

import (
	"context"

	"github.com/onceward/onceward/store/dynamodb"
)

func openDynamoDB(ctx context.Context, url string, o options) (Closer, error) {
	var options []dynamodb.Option
	if o.logger != nil {
		options = append(options, dynamodb.WithLogger(o.logger))
	}
	if o.manual {
		options = append(options, dynamodb.WithManualMigration())
	}
	if o.readOnly {
		options = append(options, dynamodb.WithReadOnly())
	}
	s, err := dynamodb.Open(ctx, url, options...)
	if err != nil {
		return nil, err // not s: a nil *Store is not nil as a Closer
	}
	return s, nil
}
