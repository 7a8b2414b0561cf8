package doctor_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	ddb "github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/onceward/onceward/cmd/onceward/internal/doctor"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store/dynamodb"
)

// newTable is a table of the store.
func newTable(t *testing.T) (address string, client *ddb.Client) {
	t.Helper()
	s := servers.DynamoDB(t)
	address = "dynamodb://" + s.Name(t) + "?region=eu-central-1&endpoint=" + s.URL()
	if err := dynamodb.Migrate(t.Context(), address); err != nil {
		t.Fatal(err)
	}
	return address, newClient(t, address)
}

// newClient returns a client whose connections are closed at the end of the test: the server may stay.
func newClient(t *testing.T, address string) *ddb.Client {
	t.Helper()
	client, err := dynamodb.Client(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Options().HTTPClient.(*http.Client).CloseIdleConnections)
	return client
}

func tableOf(address string) *string {
	table, _, _ := strings.Cut(strings.TrimPrefix(address, "dynamodb://"), "?")
	return &table
}

func TestHealthyDynamoDB(t *testing.T) {
	t.Parallel()
	address, client := newTable(t)
	wantHealthy(t, examine(t, address, doctor.Config{}))
	left, err := client.Scan(t.Context(), &ddb.ScanInput{TableName: tableOf(address)})
	if err != nil || left.Count != 1 { // what describes the table
		t.Errorf("left behind: %v, %v", left.Items, err)
	}
	missing := examine(t, strings.Replace(address, "?", "2?", 1), doctor.Config{})
	if len(missing.NotChecked()) != 8 || len(missing.Findings()) > 0 {
		t.Errorf("a table that is not there:\n%s", text(missing))
	}
}

// dynamoLiar stands before the service, and changes what is asked and answered.
func dynamoLiar(t *testing.T, address string, lie func(operation, body string) string, answer func(*http.Response) error) string {
	t.Helper()
	endpoint, err := url.Parse(servers.DynamoDB(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(endpoint)
			body, _ := io.ReadAll(r.In.Body) // a body that was cut off is refused
			_, operation, _ := strings.Cut(r.In.Header.Get("X-Amz-Target"), ".")
			if lie != nil {
				body = []byte(lie(operation, string(body)))
			}
			r.Out.Body, r.Out.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		},
		ModifyResponse: answer,
	}
	s := httptest.NewServer(proxy)
	t.Cleanup(s.Close)
	return strings.Replace(address, endpoint.String(), s.URL, 1)
}

// TestLiesOfDynamoDB plants what breaks promises, one at a time.
func TestLiesOfDynamoDB(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "TestHealthyDynamoDB runs each check")
	unchecked := strings.NewReplacer(`"ConditionExpression":"attribute_not_exists(pk)",`, ``)
	for name, test := range map[string]struct {
		lie    func(operation, body string) string
		answer func(*http.Response) error
		want   lie
	}{
		"conditions that are not looked at": {
			lie: func(operation, body string) string {
				if operation == "PutItem" {
					return unchecked.Replace(body)
				}
				return body
			},
			want: lie{"dynamodb/conditions", doctor.Broken, "16 of 16 who put one item at once", nil},
		},
		"tokens that are forgotten": {
			lie: func(operation, body string) string {
				if i := strings.Index(body, `"ClientRequestToken":"`); operation == "TransactWriteItems" && i >= 0 {
					return body[:i] + `"ClientRequestToken":"` + time.Now().Format("150405.000000000") + strings.Repeat("x", 8) +
						body[i+len(`"ClientRequestToken":"`)+26:]
				}
				return body
			},
			want: lie{"dynamodb/transactions", doctor.Broken, "was tried twice", nil},
		},
		"a clock an hour ahead": {
			answer: func(r *http.Response) error {
				r.Header.Set("Date", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat))
				return nil
			},
			want: lie{"dynamodb/clock", doctor.Weak, "ahead of this machine's", nil},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address, _ := newTable(t)
			wantFound(t, examine(t, dynamoLiar(t, address, test.lie, test.answer), doctor.Config{}), test.want)
		})
	}
	t.Run("a table of other keys", func(t *testing.T) {
		t.Parallel()
		s := servers.DynamoDB(t)
		address := "dynamodb://" + s.Name(t) + "?region=eu-central-1&endpoint=" + s.URL()
		client := newClient(t, address)
		bare := dynamodb.Table(*tableOf(address))
		bare.GlobalSecondaryIndexes = bare.GlobalSecondaryIndexes[:1]
		bare.AttributeDefinitions = bare.AttributeDefinitions[:4]
		bare.TableName = aws.String(*tableOf(address))
		if _, err := client.CreateTable(t.Context(), bare); err != nil {
			t.Fatal(err)
		}
		wantFound(t, examine(t, address, doctor.Config{}), lie{
			"dynamodb/table", doctor.Broken, "the index provider is not there", []string{"dynamodb/expiry"},
		})
	})
}
