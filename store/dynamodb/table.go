package dynamodb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	ddb "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/store"
)

// These are the indexes of the table. Both are sparse, and contain only keys.
const (
	indexDue      = "due"
	indexProvider = "provider"
)

const (
	// schemaVersion is the version of the layout that this program writes.
	schemaVersion = 1
	// createTimeout bounds how long a new table is waited for.
	createTimeout = 2 * time.Minute
)

// These are the attributes of the item that describes the table.
const (
	attrVersion = "version"
	attrShards  = "shards"
)

// Table returns the request that creates the table of a store, as [Open] creates it: on demand, with two sparse
// indexes. If you send it yourself, also enable the time to live on the attribute "expires", which removes expired
// items.
func Table(name string) *ddb.CreateTableInput {
	key := func(name string, kind types.KeyType) types.KeySchemaElement {
		return types.KeySchemaElement{AttributeName: aws.String(name), KeyType: kind}
	}
	attribute := func(name string, kind types.ScalarAttributeType) types.AttributeDefinition {
		return types.AttributeDefinition{AttributeName: aws.String(name), AttributeType: kind}
	}
	keysOnly := &types.Projection{ProjectionType: types.ProjectionTypeKeysOnly}
	return &ddb.CreateTableInput{
		TableName: aws.String(name), BillingMode: types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{
			attribute(attrPartition, types.ScalarAttributeTypeB), attribute(attrSort, types.ScalarAttributeTypeB),
			attribute(attrDueShard, types.ScalarAttributeTypeB), attribute(attrDueAt, types.ScalarAttributeTypeB),
			attribute(attrProvider, types.ScalarAttributeTypeB),
		},
		KeySchema: []types.KeySchemaElement{key(attrPartition, types.KeyTypeHash), key(attrSort, types.KeyTypeRange)},
		GlobalSecondaryIndexes: []types.GlobalSecondaryIndex{
			{
				IndexName: aws.String(indexDue), Projection: keysOnly,
				KeySchema: []types.KeySchemaElement{
					key(attrDueShard, types.KeyTypeHash), key(attrDueAt, types.KeyTypeRange),
				},
			},
			{
				IndexName: aws.String(indexProvider), Projection: keysOnly,
				KeySchema: []types.KeySchemaElement{key(attrProvider, types.KeyTypeHash)},
			},
		},
	}
}

// CloudFormation returns a template with the table of a store. In addition to what [Open] creates, the table has
// backups to any point in time and protection against deletion.
func CloudFormation(name string) ([]byte, error) {
	type object = map[string]any
	in := Table(name)
	keys := func(schema []types.KeySchemaElement) (all []object) {
		for _, k := range schema {
			all = append(all, object{"AttributeName": *k.AttributeName, "KeyType": k.KeyType})
		}
		return all
	}
	var attributes, indexes []object
	for _, a := range in.AttributeDefinitions {
		attributes = append(attributes, object{"AttributeName": *a.AttributeName, "AttributeType": a.AttributeType})
	}
	for _, i := range in.GlobalSecondaryIndexes {
		indexes = append(indexes, object{
			"IndexName": *i.IndexName, "KeySchema": keys(i.KeySchema),
			"Projection": object{"ProjectionType": i.Projection.ProjectionType},
		})
	}
	return json.MarshalIndent(object{
		"AWSTemplateFormatVersion": "2010-09-09",
		"Resources": object{"Onceward": object{
			"Type": "AWS::DynamoDB::Table", "DeletionPolicy": "Retain", "UpdateReplacePolicy": "Retain",
			"Properties": object{
				"TableName": name, "BillingMode": in.BillingMode, "AttributeDefinitions": attributes,
				"KeySchema": keys(in.KeySchema), "GlobalSecondaryIndexes": indexes,
				"TimeToLiveSpecification":          object{"AttributeName": attrExpires, "Enabled": true},
				"PointInTimeRecoverySpecification": object{"PointInTimeRecoveryEnabled": true},
				"DeletionProtectionEnabled":        true,
			},
		}},
	}, "", "  ")
}

// Migrate creates the table of a URL, or checks the existing one, as [Open] does.
func Migrate(ctx context.Context, url string, with ...Option) error {
	s, err := Open(ctx, url, append(with, func(o *options) { o.manual, o.readOnly = false, false })...)
	if err != nil {
		return err
	}
	return s.Close()
}

// prepare creates or checks the table.
func (s *Store) prepare(ctx context.Context, o *options) error {
	found, err := s.describe(ctx)
	var missing *types.ResourceNotFoundException
	switch {
	case errors.As(err, &missing) && (o.manual || o.readOnly):
		return fmt.Errorf("%w: the table %s does not exist in this region: make it from dynamodb.CloudFormation or "+
			"dynamodb.Table, or by dynamodb.Migrate", store.ErrSchemaMissing, s.table)
	case errors.As(err, &missing):
		if found, err = s.create(ctx); err != nil {
			return err
		}
	case err != nil:
		return unavailable(err)
	}
	if err := s.checkTable(ctx, found, o); err != nil {
		return err
	}
	return s.checkVersion(ctx)
}

func (s *Store) describe(ctx context.Context) (*types.TableDescription, error) {
	out, err := s.client.DescribeTable(ctx, &ddb.DescribeTableInput{TableName: &s.table}, s.observing)
	if err != nil {
		return nil, err
	}
	return out.Table, nil
}

// create creates the table and waits until it can be used. Another node may create it at the same time.
func (s *Store) create(ctx context.Context) (*types.TableDescription, error) {
	ctx, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	_, err := s.client.CreateTable(ctx, Table(s.table), s.observing)
	var exists *types.ResourceInUseException
	if err != nil && !errors.As(err, &exists) {
		return nil, unavailable(fmt.Errorf("make the table %s: %w", s.table, err))
	}
	for looks := 1; ; looks++ {
		found, err := s.describe(ctx)
		if err == nil && found.TableStatus == types.TableStatusActive {
			return found, s.enableExpiry(ctx)
		}
		if !backoff.Sleep(ctx, backoff.Exponential(minConflictPause, maxBackoff, looks)) {
			return nil, unavailable(errors.Join(fmt.Errorf("the new table %s is not ready", s.table), err, ctx.Err()))
		}
	}
}

// enableExpiry makes the service remove expired items. Another node may do so at the same time, and the service refuses
// a second request while it processes the first.
func (s *Store) enableExpiry(ctx context.Context) error {
	_, err := s.client.UpdateTimeToLive(ctx, &ddb.UpdateTimeToLiveInput{
		TableName: &s.table,
		TimeToLiveSpecification: &types.TimeToLiveSpecification{
			AttributeName: aws.String(attrExpires), Enabled: aws.Bool(true),
		},
	}, s.observing)
	if err != nil {
		if enabled, askErr := s.expires(ctx); askErr == nil && enabled {
			return nil
		}
		return unavailable(fmt.Errorf("enable the time to live of the table %s: %w", s.table, err))
	}
	return nil
}

// expires reports whether the service removes expired items.
func (s *Store) expires(ctx context.Context) (bool, error) {
	out, err := s.client.DescribeTimeToLive(ctx, &ddb.DescribeTimeToLiveInput{TableName: &s.table}, s.observing)
	if err != nil || out.TimeToLiveDescription == nil {
		return false, err
	}
	status := out.TimeToLiveDescription.TimeToLiveStatus
	return aws.ToString(out.TimeToLiveDescription.AttributeName) == attrExpires &&
		(status == types.TimeToLiveStatusEnabled || status == types.TimeToLiveStatusEnabling), nil
}

// checkTable refuses a table on which the guarantees of the store do not hold.
func (s *Store) checkTable(ctx context.Context, found *types.TableDescription, o *options) error {
	want := Table(s.table)
	if !sameKeys(found.KeySchema, want.KeySchema) {
		return fmt.Errorf("dynamodb: the table %s has other keys than those of a store: give the store a table of its own",
			s.table)
	}
	for _, a := range want.AttributeDefinitions {
		if kind, defined := typeOf(found, *a.AttributeName); defined && kind != a.AttributeType {
			return fmt.Errorf("dynamodb: the attribute %s of the table %s is of the type %s and not %s: it was not "+
				"made by a store. Give the store a table of its own",
				*a.AttributeName, s.table, kind, a.AttributeType)
		}
	}
	for _, index := range want.GlobalSecondaryIndexes {
		if !hasIndex(found, &index) {
			return fmt.Errorf("dynamodb: the table %s lacks the index %s: dynamodb.Table and dynamodb.CloudFormation say "+
				"how it is made", s.table, *index.IndexName)
		}
	}
	if err := s.checkReplicas(ctx, found, o); err != nil {
		return err
	}
	if enabled, err := s.expires(ctx); err != nil || !enabled {
		s.log.WarnContext(ctx, "dynamodb: the table has no time to live on the attribute \"expires\", or it cannot be "+
			"asked for: what has expired is not removed, and is paid for", "table", s.table, "error", err)
	}
	return nil
}

// checkReplicas refuses a table on which a condition holds in one region only.
func (s *Store) checkReplicas(ctx context.Context, found *types.TableDescription, o *options) error {
	if len(found.Replicas) == 0 || found.MultiRegionConsistency == types.MultiRegionConsistencyStrong {
		return nil
	}
	var regions []string
	for _, r := range found.Replicas {
		regions = append(regions, aws.ToString(r.RegionName))
	}
	if !o.globalTable {
		return fmt.Errorf("dynamodb: the table %s is a global table with replicas in %v and eventual consistency between "+
			"them: a condition holds within one region only, and of two writes to one key the last one wins, so that an "+
			"operation may be executed twice. Use a table of one region, or one with multi-region strong consistency; "+
			"WithGlobalTable accepts it where each key is served by one region", s.table, regions)
	}
	s.log.WarnContext(ctx, "dynamodb: a global table with eventual consistency: an operation whose key comes to two "+
		"regions is executed twice", "table", s.table, "replicas", regions)
	return nil
}

func sameKeys(a, b []types.KeySchemaElement) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if aws.ToString(a[i].AttributeName) != aws.ToString(b[i].AttributeName) || a[i].KeyType != b[i].KeyType {
			return false
		}
	}
	return true
}

// typeOf returns the type of an attribute that is a key.
func typeOf(table *types.TableDescription, name string) (kind types.ScalarAttributeType, defined bool) {
	for _, a := range table.AttributeDefinitions {
		if aws.ToString(a.AttributeName) == name {
			return a.AttributeType, true
		}
	}
	return "", false
}

func hasIndex(table *types.TableDescription, want *types.GlobalSecondaryIndex) bool {
	for _, index := range table.GlobalSecondaryIndexes {
		if aws.ToString(index.IndexName) == *want.IndexName && sameKeys(index.KeySchema, want.KeySchema) {
			return true
		}
	}
	return false
}

// checkVersion reads the item that describes the table, or writes it, and takes the number of shards from it.
func (s *Store) checkVersion(ctx context.Context) error {
	key := keyOf(kindMeta, nil, single)
	for range maxTurns {
		found, err := s.get(ctx, key)
		if err != nil {
			return err
		}
		version := int(numberOf(found[attrVersion]))
		if version > schemaVersion {
			return fmt.Errorf("%w: the table %s is of version %d, and this program knows version %d: use a newer program",
				store.ErrSchemaNewer, s.table, version, schemaVersion)
		}
		if s.noteShards(found) || s.readOnly {
			return nil
		}
		it := keyOf(kindMeta, nil, single)
		it[attrRecord] = binaryValue([]byte(newWrite(store.StateNone)))
		it[attrVersion] = numberValue(schemaVersion)
		it[attrShards] = numberValue(int64(s.shards.Load()))
		instead, err := s.putOver(ctx, it, string(bytesOf(found[attrRecord])))
		if err != nil || instead == nil {
			return err
		}
	}
	return unavailable(errContention)
}

// noteShards takes over the number of shards of the table. It reports false if the table has fewer shards than this
// store uses.
func (s *Store) noteShards(meta item) bool {
	stored := int32(min(numberOf(meta[attrShards]), maxShards))
	for {
		used := s.shards.Load()
		if stored <= used {
			return stored == used
		}
		if s.shards.CompareAndSwap(used, stored) {
			return true
		}
	}
}

// allShards returns how many shards the table has now: another node may have added some since this store was opened.
func (s *Store) allShards(ctx context.Context) (int, error) {
	meta, err := s.get(ctx, keyOf(kindMeta, nil, single), attrShards)
	if err != nil {
		return 0, err
	}
	s.noteShards(meta)
	return int(s.shards.Load()), nil
}
