package consuming

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward/inbox"
)

// Checker collects errors of a configuration, with the names of the fields. All of them are reported at once.
type Checker struct {
	// Of is the configuration, such as kafka.ConsumerConfig.
	Of    string
	wrong []error
}

func (c *Checker) refuse(format string, args ...any) {
	c.wrong = append(c.wrong, fmt.Errorf(c.Of+"."+format, args...))
}

// Required refuses a field that is not set.
func (c *Checker) Required(field string, set bool) {
	if !set {
		c.refuse("%s is required", field)
	}
}

// Name refuses a name that is missing or too long.
func (c *Checker) Name(field, name string) {
	c.Required(field, name != "")
	if len(name) > inbox.MaxName {
		c.refuse("%s is %d bytes long, and at most %d are allowed", field, len(name), inbox.MaxName)
	}
}

// AtMost refuses a number that is negative or too large.
func (c *Checker) AtMost(field string, number, most int) {
	if number < 0 {
		c.refuse("%s is negative: %d", field, number)
	}
	if number > most {
		c.refuse("%s is %d, and at most %d are allowed", field, number, most)
	}
}

// NotNegative refuses a negative duration.
func (c *Checker) NotNegative(field string, d time.Duration) {
	if d < 0 {
		c.refuse("%s is negative: %v", field, d)
	}
}

// Backoff refuses bounds that are negative or contradict each other.
func (c *Checker) Backoff(minimum, maximum time.Duration) {
	c.NotNegative("MinBackoff", minimum)
	c.NotNegative("MaxBackoff", maximum)
	if maximum > 0 && minimum > maximum {
		c.refuse("MinBackoff is %v, which is more than MaxBackoff, %v", minimum, maximum)
	}
}

// Err returns all errors, or nil.
func (c *Checker) Err() error { return errors.Join(c.wrong...) }

// SetBackoff sets omitted bounds to the usual ones, or to the other bound if the usual one would contradict it.
func SetBackoff(minimum, maximum *time.Duration, usualMinimum, usualMaximum time.Duration) {
	if *minimum == 0 {
		*minimum = min(usualMinimum, cmp.Or(*maximum, usualMaximum))
	}
	if *maximum == 0 {
		*maximum = max(usualMaximum, *minimum)
	}
}
