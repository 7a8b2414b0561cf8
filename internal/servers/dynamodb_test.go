package servers

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

// ask sends a request to a server, and returns its answer.
func ask(ctx context.Context, s *DynamoDBServer, operation, body string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL(), strings.NewReader(body))
	if err != nil {
		return "", err
	}
	request.Header.Set("X-Amz-Target", "DynamoDB_20120810."+operation)
	request.Header.Set("Content-Type", "application/x-amz-json-1.0")
	request.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/dynamodb/aws4_request, "+
		"SignedHeaders=host, Signature=a")
	request.Header.Set("X-Amz-Date", "20260101T000000Z")
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(response.Status)
	}
	return string(answer), err
}

func TestSharedDynamoDBIsOne(t *testing.T) {
	t.Parallel()
	if s := DynamoDB(t); s != DynamoDB(t) || !s.Shared() {
		t.Error("two calls gave two servers")
	}
}

func TestDynamoDBKeepsItsItems(t *testing.T) {
	t.Parallel()
	s := NewDynamoDB(t)
	_, err := ask(t.Context(), s, "CreateTable", `{"TableName":"things","BillingMode":"PAY_PER_REQUEST",
		"KeySchema":[{"AttributeName":"id","KeyType":"HASH"}],
		"AttributeDefinitions":[{"AttributeName":"id","AttributeType":"S"}]}`)
	must(t, err)
	_, err = ask(t.Context(), s, "PutItem", `{"TableName":"things","Item":{"id":{"S":"one"}}}`)
	must(t, err)
	must(t, s.Kill())
	if _, err := ask(t.Context(), s, "ListTables", "{}"); err == nil {
		t.Error("a server that was killed answers")
	}
	must(t, s.Restart())
	found, err := ask(t.Context(), s, "GetItem", `{"TableName":"things","Key":{"id":{"S":"one"}}}`)
	must(t, err)
	if !strings.Contains(found, `"one"`) {
		t.Errorf("after Kill and Restart: %s", found)
	}
	must(t, s.Pause())
	must(t, s.Resume())
	must(t, s.Stop())
	must(t, s.Restart())
}

func TestDynoxideMustBeThere(t *testing.T) {
	bare := machine{lookPath: func(string) (string, error) { return "", errors.New("none") }}
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	if _, err := findDynoxide(t.Context(), bare); err == nil || !strings.Contains(err.Error(), npmInstall) {
		t.Errorf("err = %v, want the command that installs npm", err)
	}
	t.Setenv(dynoxideVariable, "/nowhere")
	if _, err := findDynoxide(t.Context(), bare); err == nil || !strings.Contains(err.Error(), dynoxideVariable) {
		t.Errorf("err = %v, want the name of the variable in it", err)
	}
}
