package dynamodb

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/aws"
	ddb "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/onceward/onceward/store"
)

var _ store.Finder = (*Store)(nil)

// mostAlike is how many records with one provider's id are read.
const mostAlike = 100

// FindHash implements [store.Finder]: the key of a record is its hash, so one read is enough.
func (s *Store) FindHash(ctx context.Context, hash string) (store.Record, error) {
	wanted, err := store.ParseHash(hash)
	if err != nil {
		return store.Record{}, err
	}
	at := place{hash: wanted}
	found, err := s.get(ctx, at.key(), summaryAttributes...)
	if err != nil {
		return store.Record{}, err
	}
	v, _ := summarise(&at, found) // a record that cannot be read has the reason in its last error, as in a list
	if v.State == store.StateNone && v.LastError == "" {
		return store.Record{}, store.ErrNotFound
	}
	return v.Record, nil
}

// FindProviderID implements [store.Finder]. The index follows the table a moment later.
func (s *Store) FindProviderID(ctx context.Context, providerID string) ([]store.Record, error) {
	if err := s.ready(ctx); err != nil || providerID == "" {
		return nil, err
	}
	in := &ddb.QueryInput{
		TableName: &s.table, IndexName: aws.String(indexProvider), Limit: aws.Int32(mostAlike),
		KeyConditionExpression:    aws.String("#provider = :provider"),
		ExpressionAttributeNames:  map[string]string{"#provider": attrProvider},
		ExpressionAttributeValues: item{":provider": binaryValue(hashOf([]byte(providerID)))},
	}
	var entries []item
	err := s.eachPage(ctx, in, func(page []item) (bool, error) {
		entries = page
		return false, nil
	})
	if err != nil {
		return nil, err
	}
	items, err := s.readAll(ctx, entries, summaryAttributes...)
	if err != nil {
		return nil, err
	}
	var found []store.Record
	for _, it := range items {
		if at, ok := placeOfKey(it); ok {
			if v, err := summarise(&at, it); err == nil && v.ProviderID == providerID {
				found = append(found, v.Record)
			}
		}
	}
	return store.Newest(found), nil
}
