package dynamodb

import (
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"
	"github.com/onceward/onceward/store"
)

var (
	errClosed      = errors.New("the store is closed")
	errContention  = errors.New("the record is changed by others all the time")
	errUnprocessed = errors.New("the service answers without what it was asked for")
)

// explanations describe what an operator can do about errors that the service reports, by their code.
var explanations = map[string]string{
	"ResourceNotFoundException":              "the table, or one of its indexes, does not exist, or not in this region",
	"AccessDeniedException":                  "the role may not do this: see docs/dynamodb.md, Permissions",
	"UnrecognizedClientException":            "the service does not know these credentials",
	"ExpiredTokenException":                  "the credentials have expired",
	"ProvisionedThroughputExceededException": "the table has too little capacity, or one key gets too much of it",
	"RequestLimitExceeded":                   "the account is at its limit of requests",
	"ThrottlingException":                    "the service throttles the table or the account",
}

// unavailable wraps an error of the service, of the connection or of a context.
func unavailable(err error) error {
	if err == nil || errors.Is(err, store.ErrUnavailable) {
		return err
	}
	if text, ok := explanations[codeOf(err)]; ok {
		return fmt.Errorf("%w: dynamodb: %s: %w", store.ErrUnavailable, text, err)
	}
	return fmt.Errorf("%w: dynamodb: %w", store.ErrUnavailable, err)
}

// codeOf returns the code of an error that the service reports, or the empty string.
func codeOf(err error) string {
	var reported smithy.APIError
	if errors.As(err, &reported) {
		return reported.ErrorCode()
	}
	return ""
}

// conflicted reports whether a request was refused because a transaction was using the same item, or a write in another
// region was: nothing was done, and the request can be repeated in a moment.
func conflicted(err error) bool {
	if err == nil {
		return false
	}
	var transaction *types.TransactionConflictException
	var replicated *types.ReplicatedWriteConflictException
	return errors.As(err, &transaction) || errors.As(err, &replicated)
}
