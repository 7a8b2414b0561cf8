package dynamodb_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	ddb "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/dynamodb"
)

// meter has the server say what each request consumes, and adds it up.
type meter struct {
	mu      sync.Mutex
	units   map[string]float64 // by table and index
	refused int                // requests whose condition was not met, of which the server does not tell
}

// RoundTrip implements [http.RoundTripper].
func (m *meter) RoundTrip(r *http.Request) (*http.Response, error) {
	var in map[string]any
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		return nil, err
	}
	_, operation, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	if strings.HasSuffix(operation, "Item") || strings.HasSuffix(operation, "Items") {
		in["ReturnConsumedCapacity"] = "INDEXES"
	}
	body, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	r = r.Clone(r.Context())
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	response, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	answer, err := io.ReadAll(response.Body)
	_ = response.Body.Close() // it was read to its end
	response.Body = io.NopCloser(bytes.NewReader(answer))
	m.note(response.StatusCode, answer)
	return response, err
}

func (m *meter) note(status int, answer []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if status != http.StatusOK {
		m.refused++
		return
	}
	var out struct{ ConsumedCapacity json.RawMessage }
	if json.Unmarshal(answer, &out) != nil || out.ConsumedCapacity == nil {
		return
	}
	type consumed struct {
		Table                  struct{ CapacityUnits float64 }
		GlobalSecondaryIndexes map[string]struct{ CapacityUnits float64 }
		TableName              string
	}
	var all []consumed
	if json.Unmarshal(out.ConsumedCapacity, &all) != nil {
		all = make([]consumed, 1)
		_ = json.Unmarshal(out.ConsumedCapacity, &all[0]) // it is one or several
	}
	for _, c := range all {
		name, _, _ := strings.Cut(c.TableName, "-")
		m.units[name] += c.Table.CapacityUnits
		for index, i := range c.GlobalSecondaryIndexes {
			m.units[index] += i.CapacityUnits
		}
	}
}

// TestCapacity measures what each way consumes, for docs/dynamodb.md: write units by table and index, and read units
// for what is only read. It holds them to what is published there.
func TestCapacity(t *testing.T) {
	t.Parallel()
	where := newURL(t)
	open(t, where)
	used := &meter{units: map[string]float64{}}
	s := open(t, where, dynamodb.WithTransport(used))
	rows := newBusiness(t, where)
	body := strings.Repeat("x", 200)
	var owned store.Claim
	type units = map[string]float64
	for _, test := range []struct {
		name string
		call func()
		want units
	}{
		{"reserve", func() {
			owned = claimOf(reserve(t, s, request("first"), store.DecisionExecute))
		}, units{"records": 1, "due": 1}},
		{"heartbeat", func() { must(t, s.Extend(t.Context(), owned, time.Hour)) }, units{"records": 1}},
		{"complete", func() {
			_, err := s.Complete(t.Context(), owned, answer(body))
			must(t, err)
		}, units{"records": 1, "due": 1}},
		{"replay (read units)", func() {
			reserve(t, s, request("first"), store.DecisionReplay)
		}, units{"records": 1}},
		{"mismatch (read units)", func() {
			reserve(t, s, other(request("first")), store.DecisionMismatch)
		}, units{"records": 1}},
		{"transaction", func() {
			transact(t, s, request("tx"), store.DecisionExecute, func(ctx context.Context) error {
				return rows.insert(ctx, "tx")
			})
		}, units{"records": 3, "business": 2}},
	} {
		used.units, used.refused = units{}, 0
		test.call()
		t.Logf("%-22s %v", test.name, used.units)
		if !maps.Equal(used.units, test.want) || used.refused > 0 {
			t.Errorf("%s consumes %v, want %v", test.name, used.units, test.want)
		}
	}
	t.Logf("an item with an answer of %d bytes takes %d bytes", len(body), itemSize(t, where))
}

// itemSize is what the one completed record of a table takes.
func itemSize(t *testing.T, where string) (size int) {
	t.Helper()
	table, _, _ := strings.Cut(strings.TrimPrefix(where, "dynamodb://"), "?")
	out, err := clientOf(t, where).Scan(t.Context(), &ddb.ScanInput{TableName: &table})
	must(t, err)
	for _, it := range out.Items {
		size = max(size, dynamodb.SizeOf(it))
	}
	return size
}
