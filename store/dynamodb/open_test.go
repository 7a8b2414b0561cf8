package dynamodb_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"hash/crc32"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	ddb "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/dynamodb"
)

func TestURL(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"redis://records":                                 "want a URL like",
		"dynamodb://":                                     "3 to 255 letters",
		"dynamodb://ab":                                   "3 to 255 letters",
		"dynamodb://records/more":                         "want a URL like",
		"dynamodb://key:secret@records":                   "not from the URL",
		"dynamodb://records?regoin=eu-central-1":          `"regoin", which is not known`,
		"dynamodb://records?region=x&endpoint=127.0.0.1":  "the endpoint is not",
		"dynamodb://records?region=x&endpoint=ftp://host": "the endpoint is not",
	} {
		_, err := dynamodb.Open(t.Context(), text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
	if _, err := dynamodb.Open(t.Context(), newURL(t), dynamodb.WithShards(257)); err == nil {
		t.Error("an index of 257 parts was accepted")
	}
}

// TestTable: the table is made once, by many at the same time, or not at all if that is not wanted.
func TestTable(t *testing.T) {
	t.Parallel()
	where := newURL(t)
	for _, option := range []dynamodb.Option{dynamodb.WithManualMigration(), dynamodb.WithReadOnly()} {
		if _, err := dynamodb.Open(t.Context(), where, quiet, option); !errors.Is(err, store.ErrSchemaMissing) {
			t.Errorf("without a table: %v, want ErrSchemaMissing", err)
		}
	}
	var opening sync.WaitGroup
	for range 8 {
		opening.Go(func() { must(t, dynamodb.Migrate(t.Context(), where, quiet)) })
	}
	opening.Wait()
	s := open(t, where, dynamodb.WithManualMigration())
	complete(t, s, "key", "answer")
	looking := open(t, where, dynamodb.WithReadOnly())
	if rec, err := looking.Get(t.Context(), store.ID{Scope: "acme", Key: "key"}); err != nil || rec.Attempt == 0 {
		t.Errorf("looking: %v", err)
	}
	if _, err := looking.Reserve(t.Context(), request("new")); !errors.Is(err, store.ErrReadOnly) {
		t.Errorf("a write of a store that was opened for looking: %v, want ErrReadOnly", err)
	}
	must(t, s.Close())
	if _, err := s.Get(t.Context(), store.ID{Scope: "acme", Key: "key"}); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a store that was closed: %v, want ErrUnavailable", err)
	}
}

// TestOtherTable: a table of the application's is refused.
func TestOtherTable(t *testing.T) {
	t.Parallel()
	where := newURL(t)
	rows := newBusiness(t, where)
	_, err := dynamodb.New(t.Context(), clientOf(t, where), rows.table, quiet)
	if err == nil || !strings.Contains(err.Error(), "other keys") {
		t.Errorf("got %v, want a refusal", err)
	}
}

// TestNewerTable: a program that does not know the layout leaves it alone (S8).
func TestNewerTable(t *testing.T) {
	t.Parallel()
	where := newURL(t)
	open(t, where)
	table, _, _ := strings.Cut(strings.TrimPrefix(where, "dynamodb://"), "?")
	_, err := clientOf(t, where).UpdateItem(t.Context(), &ddb.UpdateItemInput{
		TableName: &table, UpdateExpression: aws.String("SET version = :v"),
		Key: map[string]types.AttributeValue{
			"pk": &types.AttributeValueMemberB{Value: []byte("m")}, "sk": &types.AttributeValueMemberB{Value: []byte{0}},
		},
		ExpressionAttributeValues: map[string]types.AttributeValue{":v": &types.AttributeValueMemberN{Value: "3"}},
	})
	must(t, err)
	if _, err := dynamodb.Open(t.Context(), where, quiet); !errors.Is(err, store.ErrSchemaNewer) {
		t.Errorf("got %v, want ErrSchemaNewer", err)
	}
}

// TestForeignTable: a table whose attributes have other types is refused, and at once: its items would be taken for
// damaged ones.
func TestForeignTable(t *testing.T) {
	t.Parallel()
	where := newURL(t)
	table, _, _ := strings.Cut(strings.TrimPrefix(where, "dynamodb://"), "?")
	in := dynamodb.Table(table)
	for i := range in.AttributeDefinitions {
		if a := &in.AttributeDefinitions[i]; *a.AttributeName == "when" {
			a.AttributeType = types.ScalarAttributeTypeN
		}
	}
	_, err := clientOf(t, where).CreateTable(t.Context(), in)
	must(t, err)
	s, err := dynamodb.Open(t.Context(), where, quiet)
	if err == nil {
		must(t, s.Close())
	}
	if err == nil || errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "was not made by a store") {
		t.Errorf("got %v, want a refusal that says why", err)
	}
}

// TestShards: a store that is opened with fewer parts than the table has still looks into all of them.
func TestShards(t *testing.T) {
	t.Parallel()
	where := newURL(t)
	many := open(t, where, dynamodb.WithShards(64))
	few := open(t, where, dynamodb.WithShards(1))
	for i := range 100 {
		reserve(t, many, request(strings.Repeat("k", i+1)), store.DecisionExecute)
	}
	found, err := few.List(t.Context(), store.Filter{State: store.StateInProgress})
	if err != nil || len(found) != 100 {
		t.Errorf("%d records are listed (%v), want 100", len(found), err)
	}
}

// changedAnswers is a transport that changes what the server answers to an operation.
type changedAnswers func(operation string, answer map[string]any)

// RoundTrip implements [http.RoundTripper].
func (change changedAnswers) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	_, operation, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	var answer map[string]any
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return nil, err
	}
	change(operation, answer)
	body, err := json.Marshal(answer)
	response.Header.Set("X-Amz-Crc32", strconv.FormatUint(uint64(crc32.ChecksumIEEE(body)), 10))
	response.Header.Del("Content-Length")
	response.ContentLength, response.Body = int64(len(body)), io.NopCloser(bytes.NewReader(body))
	return response, err
}

// TestGlobalTable: replicas without strong consistency are refused, or warned of if they are asked for.
func TestGlobalTable(t *testing.T) {
	t.Parallel()
	where := newURL(t)
	open(t, where)
	global := func(consistency string) dynamodb.Option {
		return dynamodb.WithTransport(changedAnswers(func(operation string, answer map[string]any) {
			if table, ok := answer["Table"].(map[string]any); ok && operation == "DescribeTable" {
				table["Replicas"] = []any{map[string]any{"RegionName": "us-east-1"}}
				table["MultiRegionConsistency"] = consistency
			}
		}))
	}
	_, err := dynamodb.Open(t.Context(), where, quiet, global("EVENTUAL"))
	if err == nil || !strings.Contains(err.Error(), "last one wins") || !strings.Contains(err.Error(), "us-east-1") {
		t.Errorf("a global table got %v, want a refusal with the reason", err)
	}
	open(t, where, global("STRONG"))
	var said bytes.Buffer
	open(t, where, global("EVENTUAL"), dynamodb.WithGlobalTable(),
		dynamodb.WithLogger(slog.New(slog.NewTextHandler(&said, nil))))
	if !strings.Contains(said.String(), "executed twice") {
		t.Errorf("a global table that is accepted is warned of, but the log says %q", said.String())
	}
}

// dated is a transport whose server has another time.
type dated time.Duration

// RoundTrip implements [http.RoundTripper].
func (d dated) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := http.DefaultTransport.RoundTrip(r)
	if err == nil {
		response.Header.Set("Date", time.Now().Add(time.Duration(d)).UTC().Format(http.TimeFormat))
	}
	return response, err
}

// TestWrongNodeClock: nodes whose clocks are an hour from the service's, one before and one behind it, agree on leases
// all the same, and say that their clocks are wrong (scenario 4).
func TestWrongNodeClock(t *testing.T) {
	t.Parallel()
	where := newURL(t)
	var said bytes.Buffer
	// To a node that is an hour behind, the service is an hour ahead.
	behind := open(t, where, dynamodb.WithTransport(dated(time.Hour)),
		dynamodb.WithLogger(slog.New(slog.NewTextHandler(&said, nil))))
	if !strings.Contains(said.String(), "clock of this node is wrong") {
		t.Errorf("the log says %q", said.String())
	}
	r := request("key")
	reserve(t, behind, r, store.DecisionExecute)
	await.That(t, "the store's time is the service's", func() bool { // each answer that arrives soon makes it more exact
		began := time.Now()
		now := reserve(t, behind, request("key"), store.DecisionInProgress).Now.Add(-time.Hour)
		return now.After(began.Add(-2*time.Second)) && now.Before(time.Now().Add(2*time.Second))
	})
	same := open(t, where, dynamodb.WithTransport(dated(time.Hour)))
	if swept, err := same.Sweep(t.Context(), 10); swept != 0 || err != nil {
		t.Errorf("%d records were swept (%v) within their lease", swept, err)
	}
	reserve(t, same, request("key"), store.DecisionInProgress)
}

// TestMargin: for a moment after the end of a lease no other node takes it for over, because its clock may be ahead;
// nor a claim, or an answer for expired.
func TestMargin(t *testing.T) {
	t.Parallel()
	where := newURL(t)
	s, beside := open(t, where), open(t, where)
	began := time.Now().Truncate(time.Microsecond).UTC()
	now := began
	for _, one := range []*dynamodb.Store{s, beside} {
		one.SetClock(func() time.Time { return now })
		one.SetMargin(2 * time.Second)
	}
	c := claimOf(reserve(t, s, request("key"), store.DecisionExecute))
	stored := complete(t, s, "stored", "answer")
	inWork := func(context.Context, store.Verdict) store.Settlement {
		now = began.Add(leased + time.Second) // past the lease, and within the margin
		if _, err := beside.Transact(t.Context(), request("tx"), committing(t, nil)); err != nil {
			t.Error(err)
		}
		reserve(t, beside, request("tx"), store.DecisionInProgress)
		reserve(t, beside, request("key"), store.DecisionInProgress)
		if swept, err := beside.Sweep(t.Context(), 10); swept != 0 || err != nil {
			t.Errorf("%d records were swept (%v), want none within the margin", swept, err)
		}
		return store.Settlement{Action: store.TxCommit, Completion: *answer("done")}
	}
	if v, err := s.Transact(t.Context(), request("tx"), inWork); err != nil || v.Decision != store.DecisionExecute {
		t.Errorf("the claim was taken within the margin: (%s, %v)", v.Decision, err)
	}
	must(t, s.Extend(t.Context(), c, leased))
	now = began.Add(24*time.Hour + time.Second)
	reserve(t, beside, request(stored.Key), store.DecisionReplay)
	if swept, err := beside.Sweep(t.Context(), 10); swept != 1 || err != nil {
		t.Errorf("%d records were swept (%v), want the one whose lease is long over", swept, err)
	}
	now = began.Add(24*time.Hour + 2*time.Second)
	reserve(t, beside, request(stored.Key), store.DecisionExecute)
}

// TestTestClock: a lease ends, the sweeper finds it, and an answer expires, without waiting for it.
func TestTestClock(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	clock := dynamodb.NewTestClock(t, s)
	reserve(t, s, request("lost"), store.DecisionExecute)
	complete(t, s, "kept", "answer")
	clock.Advance(leased + time.Second)
	if swept, err := s.Sweep(t.Context(), 10); swept != 1 || err != nil {
		t.Errorf("swept %d (%v), want 1", swept, err)
	}
	reserve(t, s, request("lost"), store.DecisionUnknown)
	reserve(t, s, request("kept"), store.DecisionReplay)
	clock.Advance(25 * time.Hour)
	if v := reserve(t, s, request("kept"), store.DecisionExecute); v.Origin != store.OriginRecreated {
		t.Errorf("a record past its expiry is %s", v.Origin)
	}
}

// TestCloudFormation: the template describes the table that Open makes.
func TestCloudFormation(t *testing.T) {
	t.Parallel()
	text, err := dynamodb.CloudFormation("records")
	must(t, err)
	for _, want := range []string{
		`"TableName": "records"`, `"AttributeName": "expires"`, `"IndexName": "due"`, `"IndexName": "provider"`,
		`"BillingMode": "PAY_PER_REQUEST"`, `"DeletionProtectionEnabled": true`,
	} {
		if !json.Valid(text) || !bytes.Contains(text, []byte(want)) {
			t.Errorf("the template lacks %s:\n%s", want, text)
		}
	}
}

// TestUnavailable: without a server nothing is decided.
func TestUnavailable(t *testing.T) {
	t.Parallel()
	server := servers.NewDynamoDB(t)
	s := open(t, urlOf(server, "records"))
	complete(t, s, "key", "answer")
	must(t, server.Kill())
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := s.Reserve(ctx, request("key")); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("reserve got %v, want ErrUnavailable", err)
	}
	_, err := s.Transact(ctx, request("other"), func(context.Context, store.Verdict) store.Settlement {
		t.Error("L2: the work ran without a claim")
		return store.Settlement{}
	})
	if !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("transact got %v, want ErrUnavailable", err)
	}
	must(t, server.Restart())
	reserve(t, s, request("key"), store.DecisionReplay)
}
