package provider

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/await"
)

func eventIn(t *testing.T, d delivery) Event {
	t.Helper()
	var e Event
	if err := json.Unmarshal(d.body, &e); err != nil {
		t.Fatalf("%s: %v", d.body, err)
	}
	return e
}

func TestWebhookIsSigned(t *testing.T) {
	t.Parallel()
	url, deliveries := receive(t, always(204))
	_, client := start(t, Config{Webhook: Webhook{URL: url, Secret: "s3cret"}})
	charge := mustCharge(t, client, "k", order("r"))
	d := next(t, deliveries)
	e := eventIn(t, d)
	want := Event{ID: "evt_000000000001", Type: EventSucceeded, Created: charge.Created, Data: EventData{Object: charge}}
	if !reflect.DeepEqual(e, want) {
		t.Errorf("event %+v, want %+v", e, want)
	}
	signature := d.header.Get("Provider-Signature")
	stamp, _, _ := strings.Cut(strings.TrimPrefix(signature, "t="), ",")
	at, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil || time.Since(time.Unix(at, 0)).Abs() > await.Limit {
		t.Errorf("signature %q is not of now", signature)
	}
	if signature != Sign("s3cret", time.Unix(at, 0), d.body) || signature == Sign("other", time.Unix(at, 0), d.body) {
		t.Errorf("signature %q does not fit", signature)
	}
}

func TestSignatureFollowsTheScheme(t *testing.T) {
	t.Parallel()
	// Made with: printf '1700000000.{}' | openssl dgst -sha256 -hmac secret
	const want = "t=1700000000,v1=b8569b78799ff9e3cbff0fc2d63a33a2b57f3282abd07c37ae5e8e7d79a5f163"
	if got := Sign("secret", time.Unix(1700000000, 0), []byte("{}")); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestWebhookIsRepeatedUntilItIsTaken(t *testing.T) {
	t.Parallel()
	url, deliveries := receive(t, func(n int) int {
		if n < 3 {
			return http.StatusServiceUnavailable
		}
		return http.StatusOK
	})
	_, client := start(t, Config{WebhookBackoff: time.Millisecond})
	if err := client.SetWebhook(bounded(t), Webhook{URL: url}); err != nil {
		t.Fatal(err)
	}
	mustCharge(t, client, "", order("r"))
	for range 3 {
		if e := eventIn(t, next(t, deliveries)); e.ID != "evt_000000000001" {
			t.Errorf("event %s", e.ID)
		}
	}
	// The next event would come behind a fourth delivery of the first.
	mustCharge(t, client, "", order("r"))
	if e := eventIn(t, next(t, deliveries)); e.ID != "evt_000000000002" {
		t.Errorf("event %s after the first was taken", e.ID)
	}
}

// lines is a log whose lines can be awaited.
type lines chan string

func (l lines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

func TestWebhookIsGivenUp(t *testing.T) {
	t.Parallel()
	url, deliveries := receive(t, always(500))
	logged := make(lines, 10)
	_, client := start(t, Config{
		Webhook: Webhook{URL: url}, WebhookAttempts: 2, WebhookBackoff: time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(logged, nil)),
	})
	mustCharge(t, client, "", order("r"))
	if line := await.Value(t, "a line of the log", logged); !strings.Contains(line, "given up") {
		t.Errorf("logged %s", line)
	}
	if len(deliveries) != 2 {
		t.Errorf("%d attempts, want 2", len(deliveries))
	}
}

func TestReplayAndDeclineEvents(t *testing.T) {
	t.Parallel()
	url, deliveries := receive(t, always(200))
	_, client := start(t, Config{Dedup: true, Webhook: Webhook{URL: url}})
	mustCharge(t, client, "k", order("r"))
	mustCharge(t, client, "k", order("r"))
	decline := order("d")
	decline.Amount = DeclinedAmount
	_, _ = client.Charge(bounded(t), "d", decline)
	if first := eventIn(t, next(t, deliveries)); first.Type != EventSucceeded {
		t.Errorf("first event %+v", first)
	}
	if second := eventIn(t, next(t, deliveries)); second.Type != EventDeclined || second.Data.Object.Status != Declined {
		t.Errorf("second event %+v; a replay must not send one", second)
	}
}

func TestFaultsOnWebhooks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rules []Rule
		want  []string
	}{
		"none":      {nil, []string{"a", "b", "c"}},
		"duplicate": {[]Rule{{Kind: WebhookDuplicate, Times: 1}}, []string{"a", "a", "b", "c"}},
		"drop":      {[]Rule{{Kind: WebhookDrop, Match: Match{Reference: "b"}}}, []string{"a", "c"}},
		"reordered": {[]Rule{{Kind: WebhookReordered, Times: 1, Delay: time.Hour}}, []string{"b", "a", "c"}},
		"reordered by two": {
			[]Rule{{Kind: WebhookReordered, Times: 2, Delay: time.Hour}}, []string{"c", "a", "b"},
		},
		"reordered at the end": {
			[]Rule{{Kind: WebhookReordered, Match: Match{Reference: "c"}, Delay: time.Millisecond}}, []string{"a", "b", "c"},
		},
		"with an answer that is lost": {
			[]Rule{{Kind: ResetAfter, Times: 1}, {Kind: WebhookDuplicate, Times: 1}}, []string{"a", "a", "b", "c"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, deliveries := receive(t, always(200))
			_, client := start(t, Config{Webhook: Webhook{URL: url}, Faults: Faults{Rules: c.rules}})
			for _, reference := range []string{"a", "b", "c"} {
				_, _ = client.Charge(bounded(t), "", order(reference))
			}
			var got []string
			for range c.want {
				got = append(got, eventIn(t, next(t, deliveries)).Data.Object.Reference)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestDelayedWebhookComesLate(t *testing.T) {
	t.Parallel()
	url, deliveries := receive(t, always(200))
	_, client := start(t, Config{
		Webhook: Webhook{URL: url},
		Faults:  Faults{Rules: []Rule{{Kind: WebhookDelay, Delay: 200 * time.Millisecond, Times: 1}}},
	})
	begin := time.Now()
	mustCharge(t, client, "", order("late"))
	if e := eventIn(t, next(t, deliveries)); e.Data.Object.Reference != "late" {
		t.Errorf("event %+v", e)
	}
	if took := time.Since(begin); took < 200*time.Millisecond {
		t.Errorf("the event came after %v", took)
	}
}

func TestWebhookFirstComesBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	url, deliveries := receive(t, always(200))
	_, client := start(t, Config{
		Webhook: Webhook{URL: url},
		Faults:  Faults{Rules: []Rule{{Kind: WebhookFirst}, {Kind: HoldAfter, Name: "answer"}}},
	})
	came := make(chan error, 1)
	go func() {
		_, err := client.Charge(bounded(t), "", order("r"))
		came <- err
	}()
	if err := client.Await(bounded(t), "answer", 1); err != nil {
		t.Fatal(err)
	}
	if len(deliveries) != 1 {
		t.Errorf("%d webhooks before the answer, want 1", len(deliveries))
	}
	if err := client.Release(bounded(t), "answer"); err != nil {
		t.Fatal(err)
	}
	if err := <-came; err != nil {
		t.Error(err)
	}
}
