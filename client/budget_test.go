package client_test

import (
	"errors"
	"math"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/client"
)

// TestBudget lets an outage add a fraction to the traffic, whatever MaxAttempts is, and a floor for those who send
// little.
func TestBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		budget, err := client.NewBudget(0.1, 1)
		if err != nil {
			t.Fatal(err)
		}
		service := &script{lines: []line{answers(503)}}
		c := newClient(t, client.Config{Base: service, Budget: budget, MinBackoff: 1, MaxBackoff: 1})
		const operations = 1000
		var all sync.WaitGroup
		for range operations {
			all.Go(func() {
				if got := post(t.Context(), c); got.status != http.StatusServiceUnavailable {
					t.Errorf("got %+v", got)
				}
			})
		}
		all.Wait()
		if n := len(service.sent); n < operations+10 || n > operations+112 {
			t.Errorf("%d operations were sent %d times", operations, n)
		}
		time.Sleep(3 * time.Second)
		before := len(service.sent)
		post(t.Context(), c)
		if n := len(service.sent) - before; n != 4 && n != 5 {
			t.Errorf("after three seconds there were %d attempts", n)
		}
		service.lines = []line{{err: errReset}}
		if got := post(t.Context(), c); !errors.Is(got.err, client.ErrBudgetSpent) || !errors.Is(got.err, errReset) {
			t.Errorf("got %+v", got)
		}
		// What the service asks to wait for is no retry.
		service.lines = []line{says(409, "in-progress", true).with("Retry-After", "1")}
		before = len(service.sent)
		post(t.Context(), c)
		if n := len(service.sent) - before; n < 10 {
			t.Errorf("it was asked for %d times", n)
		}
	})
}

func TestMisconfigured(t *testing.T) {
	t.Parallel()
	window := client.ProfileIETF()
	window.Window = 0
	length := client.ProfileIETF()
	length.MaxLength = -1
	for name, c := range map[string]client.Config{
		"attempts":        {MaxAttempts: -1},
		"min backoff":     {MinBackoff: -1},
		"max backoff":     {MinBackoff: 2, MaxBackoff: 1},
		"timeout":         {Timeout: -1},
		"attempt timeout": {AttemptTimeout: -1},
		"body limit":      {BodyLimit: -1},
		"methods":         {Methods: []string{""}},
		"window":          {Profile: window},
		"length":          {Profile: length},
	} {
		if _, err := client.NewClient(c); !errors.Is(err, client.ErrMisconfigured) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, numbers := range [][2]float64{{-1, 0}, {0, -1}, {math.NaN(), 0}, {0, math.Inf(1)}, {11, 0}} {
		if _, err := client.NewBudget(numbers[0], numbers[1]); !errors.Is(err, client.ErrMisconfigured) {
			t.Errorf("%v: %v", numbers, err)
		}
	}
}
