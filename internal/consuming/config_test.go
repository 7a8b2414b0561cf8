package consuming_test

import (
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/internal/consuming"
)

func TestChecker(t *testing.T) {
	t.Parallel()
	fits := strings.Repeat("x", inbox.MaxName)
	for want, check := range map[string]func(c *consuming.Checker){
		"":                              func(c *consuming.Checker) { c.Required("A", true) },
		"x.Config.A is required":        func(c *consuming.Checker) { c.Required("A", false) },
		"x.Config.Name is required":     func(c *consuming.Checker) { c.Name("Name", "") },
		"x.Config.Name is 256 bytes":    func(c *consuming.Checker) { c.Name("Name", fits+"x") },
		"x.Config.N is negative: -1":    func(c *consuming.Checker) { c.AtMost("N", -1, 9) },
		"x.Config.N is 10, and at most": func(c *consuming.Checker) { c.AtMost("N", 10, 9) },
		"x.Config.D is negative: -1ns":  func(c *consuming.Checker) { c.NotNegative("D", -1) },
		"x.Config.MinBackoff is 2ns":    func(c *consuming.Checker) { c.Backoff(2, 1) },
		"x.Config.MaxBackoff is negat":  func(c *consuming.Checker) { c.Backoff(0, -1) },
		"A is required\nx.Config.B is ": func(c *consuming.Checker) { c.Required("A", false); c.Required("B", false) },
	} {
		c := &consuming.Checker{Of: "x.Config"}
		check(c)
		if err := c.Err(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	c := &consuming.Checker{}
	c.Name("Name", fits)
	c.AtMost("N", 0, 9)
	c.AtMost("N", 9, 9)
	c.Backoff(1, 0)
	c.Backoff(1, 1)
	if err := c.Err(); err != nil {
		t.Error(err)
	}
}

func TestSetBackoff(t *testing.T) {
	t.Parallel()
	for _, each := range []struct{ minimum, maximum, wantMinimum, wantMaximum time.Duration }{
		{0, 0, time.Second, time.Minute},
		{0, time.Millisecond, time.Millisecond, time.Millisecond},
		{time.Hour, 0, time.Hour, time.Hour},
		{1, 2, 1, 2},
	} {
		minimum, maximum := each.minimum, each.maximum
		consuming.SetBackoff(&minimum, &maximum, time.Second, time.Minute)
		if minimum != each.wantMinimum || maximum != each.wantMaximum {
			t.Errorf("%+v: %v and %v", each, minimum, maximum)
		}
	}
}
