package cloudevents_test

import (
	"testing"

	"github.com/onceward/onceward/internal/cloudevents"
)

func TestPercentEncode(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		"": "", "payment/5": "payment/5", "!~#+": "!~#+", "Euro € 5": "Euro%20%E2%82%AC%205", `"%"`: "%22%25%22",
		"\x00\r\n\x7f": "%00%0D%0A%7F", "😀": "%F0%9F%98%80",
	} {
		if got := cloudevents.PercentEncode(value); got != want {
			t.Errorf("%q: %s, want %s", value, got, want)
		}
	}
}
