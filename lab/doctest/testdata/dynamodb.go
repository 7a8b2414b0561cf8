package page

import (
	"context"
	"errors"
	"net/http"

	"github.com/aws/aws-sdk-go-v2/aws"
	ddb "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/dynamodb"
)

var (
	ctx    context.Context
	client *ddb.Client
	guard  *onceward.Guard
	mux    *http.ServeMux

	payment, account, amount map[string]types.AttributeValue
)
