package dynamodb_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/dynamodb"
)

// pay collects what is to be written. It is committed together with the answer, or not at all.
func pay(w http.ResponseWriter, r *http.Request) {
	err := dynamodb.Writes(r.Context()).Put(types.Put{
		TableName: aws.String("payments"),
		Item: map[string]types.AttributeValue{
			"id":     &types.AttributeValueMemberS{Value: r.Header.Get("Idempotency-Key")},
			"amount": &types.AttributeValueMemberN{Value: "1200"},
		},
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusCreated)
}

func ExampleWrites() {
	ctx := context.Background()
	store, err := dynamodb.Open(ctx, "dynamodb://onceward?region=eu-central-1")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	guard, err := onceward.New(store, onceward.Config{
		Scope: onceward.SingleScope("shop"), Secret: []byte("thirty-two random bytes, or more"),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	http.Handle("POST /payments", guard.Handler(http.HandlerFunc(pay), onceward.Transactional()))
}

// A handler is tested by itself, without a guard and without a server.
func ExampleContextWithWrites() {
	collected := dynamodb.NewCollector()
	r := httptest.NewRequest(http.MethodPost, "/payments", nil)
	r.Header.Set("Idempotency-Key", "order-42")
	w := httptest.NewRecorder()
	pay(w, r.WithContext(dynamodb.ContextWithWrites(r.Context(), collected)))
	fmt.Println(w.Code, len(collected.Items()), *collected.Items()[0].Put.TableName)
	// Output: 201 1 payments
}
