package node

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"

	"github.com/aws/aws-sdk-go-v2/aws"
	ddb "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/dynamodb"
)

// entryItems is the table of entries on DynamoDB.
const entryItems = "chaos-entries"

// appendItem is appendEntry on DynamoDB: the item is committed together with the answer.
func appendItem(w http.ResponseWriter, r *http.Request) {
	var e Entry
	if err := json.NewDecoder(r.Body).Decode(&e); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	e.ID, e.Account = rand.Text(), onceward.FromContext(r.Context()).Scope()
	err := dynamodb.Writes(r.Context()).Put(types.Put{
		TableName: aws.String(entryItems), Item: map[string]types.AttributeValue{
			"id": &types.AttributeValueMemberS{Value: e.ID}, "reference": &types.AttributeValueMemberS{Value: e.Reference},
		},
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(e) // it is kept in memory until the commit
}

// itemsClient asks the service of a store at a URL, which is an emulator: any credentials do.
func itemsClient(store string) (*ddb.Client, error) {
	parsed, err := url.Parse(store)
	if err != nil {
		return nil, err
	}
	return ddb.New(ddb.Options{
		Region: parsed.Query().Get("region"), BaseEndpoint: aws.String(parsed.Query().Get("endpoint")),
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "chaos", SecretAccessKey: "chaos"}, nil
		}),
	}), nil
}

// CreateEntryItems makes the table of entries at the service of a store.
func CreateEntryItems(ctx context.Context, store string) error {
	client, err := itemsClient(store)
	if err != nil {
		return err
	}
	_, err = client.CreateTable(ctx, &ddb.CreateTableInput{
		TableName: aws.String(entryItems), BillingMode: types.BillingModePayPerRequest,
		KeySchema: []types.KeySchemaElement{{AttributeName: aws.String("id"), KeyType: types.KeyTypeHash}},
		AttributeDefinitions: []types.AttributeDefinition{
			{AttributeName: aws.String("id"), AttributeType: types.ScalarAttributeTypeS},
		},
	})
	return err
}

// EntryItems are all entries at the service of a store.
func EntryItems(ctx context.Context, store string) (all []Entry, err error) {
	client, err := itemsClient(store)
	if err != nil {
		return nil, err
	}
	pages := ddb.NewScanPaginator(client, &ddb.ScanInput{
		TableName: aws.String(entryItems), ConsistentRead: aws.Bool(true),
	})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		for _, item := range page.Items {
			id, isText := item["id"].(*types.AttributeValueMemberS)
			reference, isReference := item["reference"].(*types.AttributeValueMemberS)
			if !isText || !isReference {
				return nil, errors.New("an entry lacks its id or its reference")
			}
			all = append(all, Entry{ID: id.Value, Reference: reference.Value})
		}
	}
	return all, nil
}
