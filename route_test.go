package onceward_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/memory"
)

func TestMethodsThatWouldNeverMatch(t *testing.T) {
	t.Parallel()
	guard := newGuard(t, memory.New())
	for _, methods := range [][]string{{"post"}, {"Post"}, {http.MethodPost, "patch"}, {""}} {
		_, err := guard.Route(onceward.Reserved(onceward.FailureUnknown), onceward.Methods(methods...))
		if err == nil || !strings.Contains(err.Error(), "Methods") {
			t.Errorf("H6: Methods(%q): %v; want an error that names the option", methods, err)
		}
	}
}

func TestTheWarningOfAShortRetention(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	guard := newGuard(t, memory.New(), func(c *onceward.Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	warnings := func() int { return strings.Count(log.String(), "less than a day") }
	short := []onceward.Option{onceward.Reserved(onceward.FailureUnknown), onceward.Retain(2 * time.Hour)}

	w := new(work)
	for i := range 5 {
		call := someCall
		call.Key = fmt.Sprint(i)
		if _, err := guard.Do(t.Context(), call, w.do, short...); err != nil {
			t.Fatal(err)
		}
	}
	if got := warnings(); got != 0 {
		t.Errorf("section 11: 5 calls warned %d times", got)
	}
	guard.Handler(new(counted), onceward.Reserved(onceward.FailureUnknown))
	if got := warnings(); got != 0 {
		t.Errorf("section 11: a route that keeps its answers for a day warned %d times", got)
	}
	h := guard.Handler(new(counted), short...)
	for i := range 5 {
		post(h, fmt.Sprint(i), `{}`)
	}
	if got := warnings(); got != 1 {
		t.Errorf("section 11: a route and its 5 requests warned %d times, want once", got)
	}
}
