package main

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	ddb "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/dynamodb"
)

// openDynamoDB opens the store in a table of its own, on the client that all ways share.
func openDynamoDB(ctx context.Context, e *engines) (*dynamodb.Store, *dynamodbServer, string, error) {
	s, err := e.serveDynamoDB(ctx)
	if err != nil {
		return nil, nil, "", err
	}
	table := s.newTable()
	st, err := dynamodb.New(ctx, s.client, table)
	return st, s, table, err
}

// openDynamoDBReserved is reserve and complete.
func openDynamoDBReserved(ctx context.Context, e *engines) (*arena, error) {
	st, s, table, err := openDynamoDB(ctx, e)
	if err != nil {
		return nil, err
	}
	return &arena{
		operate: func(ctx context.Context) error { return reserveAndComplete(ctx, st, newKey()) },
		check:   func(ctx context.Context, done int64) error { return s.expect(ctx, table, done) },
		close:   func() error { return errors.Join(st.Close(), s.drop(table)) },
	}, nil
}

// openDynamoDBReplay is the replay of keys that are completed, chosen at random.
func openDynamoDBReplay(ctx context.Context, e *engines) (*arena, error) {
	st, s, table, err := openDynamoDB(ctx, e)
	if err != nil {
		return nil, err
	}
	keys := newKeys(replayedKeys)
	return &arena{
		operate: func(ctx context.Context) error { return replayOnce(ctx, st, reservation(keys[rand.N(len(keys))])) },
		close:   func() error { return errors.Join(st.Close(), s.drop(table)) },
	}, fill(ctx, st, keys)
}

// powertools keeps records as the idempotency utility of AWS Powertools documents it: a conditional put with the
// status INPROGRESS, the work, and an update with the answer and the status COMPLETED. The answer of a completed key
// comes back with the condition that failed. What it does not do: the update has no condition, so that an owner whose
// time is over overwrites its successor's answer, and what has run out of time in progress is executed again.
type powertools struct {
	client *ddb.Client
	table  string
}

// The attributes and the condition that it documents.
const (
	powertoolsCondition = `attribute_not_exists(#id) OR #expiry < :now OR ` +
		`(#status = :inprogress AND attribute_exists(#in_progress_expiry) AND #in_progress_expiry < :now_in_millis)`
	powertoolsUpdate = `SET #response_data = :response_data, #expiry = :expiry, #status = :status, ` +
		`#validation_key = :validation_key`
)

var (
	powertoolsPutNames = map[string]string{
		"#id": "id", "#expiry": "expiration", "#status": "status", "#in_progress_expiry": "in_progress_expiration",
	}
	powertoolsUpdateNames = map[string]string{
		"#response_data": "data", "#expiry": "expiration", "#status": "status", "#validation_key": "validation",
	}
)

// openPowertoolsTable makes the table that it documents.
func openPowertoolsTable(ctx context.Context, e *engines) (*powertools, *dynamodbServer, error) {
	s, err := e.serveDynamoDB(ctx)
	if err != nil {
		return nil, nil, err
	}
	p := &powertools{client: s.client, table: s.newTable()}
	_, err = s.client.CreateTable(ctx, &ddb.CreateTableInput{
		TableName: &p.table, BillingMode: types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{
			{AttributeName: aws.String("id"), AttributeType: types.ScalarAttributeTypeS},
		},
		KeySchema: []types.KeySchemaElement{{AttributeName: aws.String("id"), KeyType: types.KeyTypeHash}},
	})
	if err != nil {
		return nil, nil, err
	}
	_, err = s.client.UpdateTimeToLive(ctx, &ddb.UpdateTimeToLiveInput{
		TableName: &p.table,
		TimeToLiveSpecification: &types.TimeToLiveSpecification{
			AttributeName: aws.String("expiration"), Enabled: aws.Bool(true),
		},
	})
	return p, s, err
}

func text(value string) types.AttributeValue { return &types.AttributeValueMemberS{Value: value} }

func number(value int64) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: strconv.FormatInt(value, 10)}
}

// id is the name of the function and a hash of what makes requests equal.
func (p *powertools) id(r *store.Reservation) string {
	sum := md5.Sum([]byte(r.Scope + "#" + r.Key))
	return "payments.handler#" + hex.EncodeToString(sum[:])
}

// validation is the hash of the request, which is compared with that of a duplicate.
func validation(r *store.Reservation) types.AttributeValue {
	return text(hex.EncodeToString(r.Fingerprints[0].Sum[:16]))
}

// put tries to be the one who executes. If another one was, it returns what that one has stored.
func (p *powertools) put(ctx context.Context, r *store.Reservation) (map[string]types.AttributeValue, error) {
	now := time.Now()
	_, err := p.client.PutItem(ctx, &ddb.PutItemInput{
		TableName: &p.table,
		Item: map[string]types.AttributeValue{
			"id": text(p.id(r)), "status": text("INPROGRESS"), "expiration": number(now.Add(r.Retention).Unix()),
			"in_progress_expiration": number(now.Add(r.Lease).UnixMilli()), "validation": validation(r),
		},
		ConditionExpression: aws.String(powertoolsCondition), ExpressionAttributeNames: powertoolsPutNames,
		ExpressionAttributeValues: map[string]types.AttributeValue{
			":now": number(now.Unix()), ":now_in_millis": number(now.UnixMilli()), ":inprogress": text("INPROGRESS"),
		},
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	})
	var failed *types.ConditionalCheckFailedException
	if errors.As(err, &failed) {
		return failed.Item, nil
	}
	return nil, err
}

// storedAnswer is the answer as it is stored: a text, with all that a replay has to give back.
var storedAnswer = fmt.Sprintf(`{"statusCode":%d,"headers":%s,"body":%q}`, http.StatusCreated, textbookHeaders, answer)

// update stores the answer.
func (p *powertools) update(ctx context.Context, r *store.Reservation) error {
	_, err := p.client.UpdateItem(ctx, &ddb.UpdateItemInput{
		TableName: &p.table, Key: map[string]types.AttributeValue{"id": text(p.id(r))},
		UpdateExpression: aws.String(powertoolsUpdate), ExpressionAttributeNames: powertoolsUpdateNames,
		ExpressionAttributeValues: map[string]types.AttributeValue{
			":response_data": text(storedAnswer), ":expiry": number(time.Now().Add(r.Retention).Unix()),
			":status": text("COMPLETED"), ":validation_key": validation(r),
		},
	})
	return err
}

// first is a new key.
func (p *powertools) first(ctx context.Context, key string) error {
	r := reservation(key)
	found, err := p.put(ctx, r)
	if err == nil && found != nil {
		err = errors.New("a new key was put, and found")
	}
	if err != nil {
		return err
	}
	return p.update(ctx, r)
}

// replay is a key that is completed.
func (p *powertools) replay(ctx context.Context, key string) error {
	found, err := p.put(ctx, reservation(key))
	if err != nil {
		return err
	}
	data, ok := found["data"].(*types.AttributeValueMemberS)
	if !ok || data.Value != storedAnswer {
		return errors.New("a key was put that is completed, and its answer did not come back")
	}
	return nil
}

// openPowertools is a put and an update.
func openPowertools(ctx context.Context, e *engines) (*arena, error) {
	p, s, err := openPowertoolsTable(ctx, e)
	if err != nil {
		return nil, err
	}
	return &arena{
		operate: func(ctx context.Context) error { return p.first(ctx, newKey()) },
		check:   func(ctx context.Context, done int64) error { return s.expect(ctx, p.table, done) },
		close:   func() error { return s.drop(p.table) },
	}, nil
}

// openPowertoolsReplay is a put whose condition fails, of keys that are completed, chosen at random.
func openPowertoolsReplay(ctx context.Context, e *engines) (*arena, error) {
	p, s, err := openPowertoolsTable(ctx, e)
	if err != nil {
		return nil, err
	}
	keys := newKeys(replayedKeys)
	next := make(chan string, len(keys))
	for _, key := range keys {
		next <- key
	}
	_, err = repeatTimes(manyCallers, len(keys), func(ctx context.Context) error { return p.first(ctx, <-next) })
	return &arena{
		operate: func(ctx context.Context) error { return p.replay(ctx, keys[rand.N(len(keys))]) },
		close:   func() error { return s.drop(p.table) },
	}, err
}
